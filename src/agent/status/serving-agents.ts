import { define, isCode, matchesSelector } from '../../base/index.ts';
import {
  BLOCK_MOVER,
  BUILT_IN_MOVERS,
  CONFIG_MAPS,
  DAEMON_SETS,
  type DaemonSet,
  KNOWN_MOVERS,
  type KubeClient,
  type Node,
  type Pod,
  PODS,
} from '../../kube/index.ts';
import { concurrencyOf, type NodeAgentConfig, parseNodeAgentConfig } from '../node-agent-config.ts';

/** The agents of one DaemonSet, Velero's or Longshore's: both read the same flags. */
export interface AgentGroup {
  /** Name of the DaemonSet. */
  readonly name: string;
  /** Values of `spec.datamover` that they serve. */
  readonly movers: ReadonlySet<string>;
  /** Label selector of their pods, as text. */
  readonly selector: string;
  /** Undefined if it cannot be read; then the numbers are unknown. */
  readonly config: NodeAgentConfig | undefined;
  /** Nodes that should have an agent, as counted by the DaemonSet. */
  readonly wanted: number | undefined;
  /**
   * Whether the template shows that it runs Longshore. A template without these signs may still run
   * it, by its image.
   */
  readonly isOwn: boolean;
}

/** All agents of a namespace. */
export interface KnownAgents {
  readonly groups: readonly AgentGroup[];
  readonly alive: readonly Pod[];
  /**
   * False if there may be other agents: DaemonSets cannot be listed, or a pod with the role of an
   * agent belongs to no known group.
   */
  readonly areAll: boolean;
}

interface DaemonSetStatus {
  readonly desiredNumberScheduled?: number;
  readonly observedGeneration?: number;
}

/** Facts that the caller knows better than the DaemonSets. */
export interface ServingFlags {
  readonly dataMovers?: string | undefined;
  readonly agentSelector?: string | undefined;
  /** Only the agents of this DaemonSet. */
  readonly daemonSet?: string | undefined;
}

/** Data movers without the flag: Longshore's (default of cli/node-agent/verb.ts) and Velero's. */
const OWN_MOVERS = 'velero,longshore';
const VELERO_MOVERS = 'velero';
const DEFAULT_SELECTOR = 'role=node-agent';
/** Matches the role of pods of Velero's and Longshore's agents. */
const AGENT_ROLE = /(^|-)node-agent/;
/** Looked up by name if listing is forbidden: Velero's and Longshore's. */
const USUAL_NAMES = ['node-agent', 'longshore-node-agent'];

/** The values of `spec.datamover` served for the text of a `--data-movers` flag. */
export function dataMoversOf(text: string): Set<string> {
  const names = new Set(text.split(',').map((name) => name.trim()));
  if (names.has('velero')) for (const name of BUILT_IN_MOVERS) names.add(name);
  return names;
}

/** The agents that serve DataUploads and DataDownloads in this namespace, from its DaemonSets. */
export async function loadAgentGroups(
  client: KubeClient,
  namespace: string,
  pods: readonly Pod[],
  flags: ServingFlags = {},
): Promise<AgentGroup[]> {
  const { found } = await findDaemonSets(client, namespace, pods, flags);
  const groups = await groupsOf(client, namespace, found, flags);
  const { dataMovers, agentSelector = DEFAULT_SELECTOR } = flags;
  if (dataMovers === undefined) return groups;
  const movers = dataMoversOf(dataMovers);
  const named = groups.filter((group) => [...group.movers].some((name) => movers.has(name)));
  if (named.length > 0) return named.map((group) => ({ ...group, movers }));
  const unknown = { config: undefined, wanted: undefined, isOwn: false };
  return [{ name: '', movers, selector: agentSelector, ...unknown }];
}

/** All agents of this namespace, and their running pods. */
export async function loadAgents(client: KubeClient, namespace: string): Promise<KnownAgents> {
  const pods = await client.list(PODS, { namespace, labelSelector: 'role' });
  const running = pods.filter(({ status }) => status?.phase === 'Running');
  const { found, areAll } = await findDaemonSets(client, namespace, running, {});
  const groups = await groupsOf(client, namespace, found, {});
  const isKnown = (pod: Pod): boolean => groups.some((group) => isAgentOf(group, pod));
  const alive = running.filter(isKnown);
  // For example agents started by a shell, or in a container that is not the first.
  const hasOthers = running.some(
    (pod) => AGENT_ROLE.test(pod.metadata.labels?.role ?? '') && !isKnown(pod),
  );
  return { groups, alive, areAll: areAll && !hasOthers };
}

async function groupsOf(
  client: KubeClient,
  namespace: string,
  found: readonly DaemonSet[],
  flags: ServingFlags,
): Promise<AgentGroup[]> {
  const groups: AgentGroup[] = [];
  for (const daemonSet of found) {
    const args = argsOf(daemonSet);
    if (!args.includes('node-agent') || !args.includes('server')) continue;
    const { status } = daemonSet as DaemonSet & { status?: DaemonSetStatus };
    // Before the DaemonSet controller has set the status, 0 means nothing.
    const isCounted = status?.observedGeneration !== undefined;
    groups.push({
      name: daemonSet.metadata.name,
      movers: moversOf(daemonSet, args),
      selector: flags.agentSelector ?? flagOf(args, 'agent-selector') ?? DEFAULT_SELECTOR,
      config: await loadConfig(client, namespace, flagOf(args, 'node-agent-configmap')),
      wanted: isCounted ? status.desiredNumberScheduled : undefined,
      isOwn: runsThisProgram(daemonSet),
    });
  }
  return groups;
}

/** Velero's agents have no such flag. Their version is unknown, and 1.19 serves the block mover. */
function moversOf(daemonSet: DaemonSet, args: readonly string[]): Set<string> {
  const text = flagOf(args, 'data-movers');
  if (text !== undefined || runsThisProgram(daemonSet)) return dataMoversOf(text ?? OWN_MOVERS);
  return dataMoversOf(VELERO_MOVERS).add(BLOCK_MOVER);
}

/** Longshore's manifests and chart set such a variable; Velero's node-agent has none. */
const runsThisProgram = ({ spec }: DaemonSet): boolean =>
  spec.template.spec.containers.some(({ env = [] }) =>
    env.some(({ name }) => name.startsWith('LONGSHORE_')),
  );

/** Whether a running agent serves this data mover; undefined for third-party movers. */
export async function isMoverServed(
  client: KubeClient,
  namespace: string,
  mover: string,
): Promise<boolean | undefined> {
  if (!KNOWN_MOVERS.has(mover)) return undefined;
  const { groups, alive } = await loadAgents(client, namespace);
  return groups
    .filter(({ movers }) => movers.has(mover))
    .some((group) => alive.some((pod) => isAgentOf(group, pod)));
}

async function findDaemonSets(
  client: KubeClient,
  namespace: string,
  pods: readonly Pod[],
  { daemonSet }: ServingFlags,
): Promise<{ found: DaemonSet[]; areAll: boolean }> {
  if (daemonSet !== undefined) {
    const named = await client.get(DAEMON_SETS, { namespace, name: daemonSet });
    return { found: [named], areAll: false };
  }
  try {
    return { found: await client.list(DAEMON_SETS, { namespace }), areAll: true };
  } catch (error) {
    // The agents themselves may only read DaemonSets by name.
    if (!isCode(error, 'KUBE_FORBIDDEN')) throw error;
  }
  const names = new Set(USUAL_NAMES);
  for (const pod of pods) {
    const name = daemonSetOf(pod);
    if (name !== undefined) names.add(name);
  }
  const found = await Promise.all(
    [...names].map((name) => unlessRefused(client.find(DAEMON_SETS, { namespace, name }))),
  );
  return { found: found.filter((each) => each !== undefined), areAll: false };
}

const daemonSetOf = ({ metadata }: Pod): string | undefined =>
  metadata.ownerReferences?.find(({ kind }) => kind === 'DaemonSet')?.name;

/** Whether a pod is one of these agents. */
export function isAgentOf({ name, selector }: AgentGroup, pod: Pod): boolean {
  const owner = daemonSetOf(pod);
  if (owner !== undefined) return owner === name;
  const matchLabels: Record<string, string> = {};
  for (const pair of selector.split(',')) {
    const [label = '', value = ''] = pair.split(/==?/);
    define(matchLabels, label.trim(), value.trim());
  }
  return matchesSelector({ matchLabels }, pod.metadata.labels);
}

/** Data paths that may run on a node at once; undefined if unknown. */
export function placesOf({ config }: AgentGroup, node: Node | undefined): number | undefined {
  if (config === undefined) return undefined;
  const labels = node?.metadata.labels;
  return concurrencyOf(
    config,
    (selector) => labels !== undefined && matchesSelector(selector, labels),
  );
}

function argsOf({ spec }: DaemonSet): string[] {
  const [container] = spec.template.spec.containers;
  return [...(container?.command ?? []), ...(container?.args ?? [])];
}

/** Both spellings: `--flag=value` and `--flag value`. */
function flagOf(args: readonly string[], flag: string): string | undefined {
  const begin = `--${flag}=`;
  const joined = args.find((text) => text.startsWith(begin));
  if (joined !== undefined) return joined.slice(begin.length);
  const at = args.indexOf(`--${flag}`);
  return at < 0 ? undefined : args[at + 1];
}

async function loadConfig(
  client: KubeClient,
  namespace: string,
  name: string | undefined,
): Promise<NodeAgentConfig | undefined> {
  if (name === undefined || name === '') return parseNodeAgentConfig('', { none: '{}' }).config;
  const found = await unlessRefused(client.find(CONFIG_MAPS, { namespace, name }));
  if (!found) return undefined;
  try {
    return parseNodeAgentConfig(name, found.data).config;
  } catch (error) {
    // The agents report a bad ConfigMap themselves, and do not start.
    if (isCode(error, 'BAD_CONFIG')) return undefined;
    throw error;
  }
}

/** For optional facts: undefined if access is forbidden or the kind does not exist. */
export async function unlessRefused<T>(answer: Promise<T>): Promise<T | undefined> {
  try {
    return await answer;
  } catch (error) {
    if (isCode(error, 'KUBE_FORBIDDEN', 'KUBE_NOT_FOUND')) return undefined;
    throw error;
  }
}
