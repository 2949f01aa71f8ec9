import {
  type DataDownload,
  type DataUpload,
  BLOCK_MOVER,
  IN_PLACE_MOVER,
  KNOWN_MOVERS,
  type KubeClient,
} from '../../kube/index.ts';
import { isServedBy } from '../movement.ts';
import { type AgentGroup, isAgentOf, loadAgents } from './serving-agents.ts';

/** Why no agent claims a CR. */
export interface Unserved {
  /** The missing condition, as part of a sentence. */
  readonly waitsFor: string;
  /** False if agents could serve the CR, but are currently away. */
  readonly isLasting: boolean;
}

/**
 * Why no node-agent of this namespace claims a new DataUpload or DataDownload without a finalizer.
 * Undefined if an agent may claim it, or if its data mover is a third party's. Sends two requests.
 * Throws `KUBE_*` errors, for example if agents may not be listed.
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
    return { waitsFor: noAgentText(groups, datamover || 'velero'), isLasting: areAll };
  }
  // Agents of Velero do not serve restores in place.
  const isOursAlone = datamover === IN_PLACE_MOVER;
  const may = isOursAlone ? serving.filter(isOurs) : serving;
  if (may.some(runs)) return undefined;
  if (may[0]) return { waitsFor: nobodyRuns(may[0]), isLasting: false };
  const names = serving.map(({ name }) => name).join(', ');
  const waitsFor = `a node-agent of Longshore: nobody else restores in place, and ${names} has not taken it up`;
  return { waitsFor, isLasting: areAll && serving.some(runs) };
}

/** Whether the group's agents run Longshore, according to their DaemonSet. */
export const isOurs = ({ isOwn, movers }: AgentGroup): boolean =>
  isOwn || movers.has(IN_PLACE_MOVER);

/** Served together with `velero`; some only by agents of Velero 1.19. */
const HIDDEN = new Set(['', 'velero-fs', BLOCK_MOVER]);

/** The missing condition of a CR if no agent serves its `spec.datamover`. */
export function noAgentText(groups: readonly AgentGroup[], mover: string): string {
  if (groups.length === 0) {
    return 'a node-agent: there is no node-agent DaemonSet in this namespace';
  }
  const served = groups.map(({ name, movers }) => {
    const names = [...movers].filter((each) => !HIDDEN.has(each));
    return `${name === '' ? 'they' : name} serve${name === '' ? '' : 's'} ${names.join(', ')}`;
  });
  return `the data mover "${mover}", which no agent here serves (${served.join('; ')})`;
}

/** The missing condition of a CR if none of its agents is running. */
export function nobodyRuns({ name, wanted }: AgentGroup): string {
  if (name === '') return 'a node-agent: none is running';
  if (wanted === 0) return `a node-agent: DaemonSet ${name} has no node to run on`;
  const count = wanted === undefined ? '' : ` (0 of ${wanted} are ready)`;
  return `a node-agent: none of DaemonSet ${name} is running${count}`;
}
