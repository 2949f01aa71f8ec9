import {
  type DataDownload,
  type DataUpload,
  BLOCK_MOVER,
  IN_PLACE_MOVER,
  KNOWN_MOVERS,
  type KubeClient,
} from '../kube/index.ts';
import { isServedBy } from './movement.ts';
import { type AgentGroup, isAgentOf, loadAgents } from './serving.ts';

/** Why nobody takes a CR up. */
export interface Unserved {
  /** What it waits for, as part of a sentence. */
  readonly waitsFor: string;
  /** False where the agents that would take it up are only away. */
  readonly isLasting: boolean;
}

/**
 * Why no node-agent of this namespace takes up a DataUpload or DataDownload that is new, and has no
 * agent's finalizer; undefined where one may, and where nothing is known of who serves it. Two
 * requests. Throws what the API server says to whoever may not see agents.
 */
export async function whyUnserved(
  client: KubeClient,
  namespace: string,
  movement: DataUpload | DataDownload,
): Promise<Unserved | undefined> {
  const { datamover = '' } = movement.spec;
  if (!KNOWN_MOVERS.has(datamover)) return undefined;
  const { groups, alive, areAll } = await loadAgents(client, namespace);
  const serving = groups.filter(({ movers }) => isServedBy(movers, movement));
  const runs = (group: AgentGroup): boolean => alive.some((pod) => isAgentOf(group, pod));
  const [first] = serving;
  if (!first) {
    return { waitsFor: nobodyServes(groups, datamover || 'velero'), isLasting: areAll };
  }
  // Agents of Velero know nothing of what only ours serve.
  const isOursAlone = datamover === IN_PLACE_MOVER;
  const may = isOursAlone ? serving.filter(isOurs) : serving;
  if (may.some(runs)) return undefined;
  if (may[0]) return { waitsFor: nobodyRuns(may[0]), isLasting: false };
  const names = serving.map(({ name }) => name).join(', ');
  const waitsFor = `a node-agent of Longshore: nobody else restores in place, and ${names} has not taken it up`;
  return { waitsFor, isLasting: areAll && serving.some(runs) };
}

/** Whether its agents run this program, as far as their DaemonSet says. */
export const isOurs = ({ isOwn, movers }: AgentGroup): boolean =>
  isOwn || movers.has(IN_PLACE_MOVER);

/** They go with `velero`, some only in Velero's agents of 1.19. */
const HIDDEN = new Set(['', 'velero-fs', BLOCK_MOVER]);

/** Where no agent serves this `spec.datamover`: what it waits for. */
export function nobodyServes(groups: readonly AgentGroup[], mover: string): string {
  if (groups.length === 0) {
    return 'a node-agent: there is no node-agent DaemonSet in this namespace';
  }
  const served = groups.map(({ name, movers }) => {
    const names = [...movers].filter((each) => !HIDDEN.has(each));
    return `${name === '' ? 'they' : name} serve${name === '' ? '' : 's'} ${names.join(', ')}`;
  });
  return `the data mover "${mover}", which no agent here serves (${served.join('; ')})`;
}

/** Where none of the agents that serve it is running: what it waits for. */
export function nobodyRuns({ name, wanted }: AgentGroup): string {
  if (name === '') return 'a node-agent: none is running';
  if (wanted === 0) return `a node-agent: DaemonSet ${name} has no node to run on`;
  const count = wanted === undefined ? '' : ` (0 of ${wanted} are ready)`;
  return `a node-agent: none of DaemonSet ${name} is running${count}`;
}
