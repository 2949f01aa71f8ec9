import {
  DATA_DOWNLOADS,
  DATA_UPLOADS,
  type KubeClient,
  type Node,
  NODES,
  type Pod,
  PODS,
} from '../kube/index.ts';
import {
  isCancelWanted,
  isFinal,
  millisecondsSince,
  type Movement,
  ownerOf,
  phaseOf,
} from './movement.ts';

export interface MovementDescription {
  readonly kind: string;
  readonly name: string;
  readonly phase: string;
  readonly node: string;
  readonly ageSeconds: number;
  /** In a sentence: what is to happen next, and who keeps it waiting. */
  readonly waitsFor: string;
}

export interface StatusQuery {
  readonly client: KubeClient;
  readonly namespace: string;
  readonly dataMovers: ReadonlySet<string>;
  /** Label selector of the agents' pods. */
  readonly agentSelector: string;
}

/** All DataUploads and DataDownloads, oldest first, and what each waits for. */
export async function describeMovements(query: StatusQuery): Promise<MovementDescription[]> {
  const { client, namespace, agentSelector } = query;
  const [ups, downs, pods, agents, nodes] = await Promise.all([
    client.list(DATA_UPLOADS, { namespace }),
    client.list(DATA_DOWNLOADS, { namespace }),
    client.list(PODS, { namespace, labelSelector: 'velero.io/exposer-pod-group' }),
    client.list(PODS, { namespace, labelSelector: agentSelector }),
    client.list(NODES),
  ]);
  const world: World = {
    ...query,
    nodes,
    pods: new Map(pods.map((pod) => [pod.metadata.name, pod])),
    agents: new Set(
      agents.flatMap(({ spec, status }) =>
        status?.phase === 'Running' && spec.nodeName !== undefined ? [spec.nodeName] : [],
      ),
    ),
  };
  return [...ups, ...downs]
    .sort((a, b) => (a.metadata.creationTimestamp < b.metadata.creationTimestamp ? -1 : 1))
    .map((movement) => ({
      kind: 'sourcePVC' in movement.spec ? 'DataUpload' : 'DataDownload',
      name: movement.metadata.name,
      phase: phaseOf(movement),
      node: ownerOf(movement) ?? '',
      ageSeconds: millisecondsSince(client.clock, movement.metadata.creationTimestamp) / 1000,
      waitsFor: waitsFor(movement, world),
    }));
}

interface World extends StatusQuery {
  readonly pods: ReadonlyMap<string, Pod>;
  readonly agents: ReadonlySet<string>;
  readonly nodes: readonly Node[];
}

function waitsFor(movement: Movement, world: World): string {
  const { status, spec, metadata } = movement;
  if (isFinal(movement)) return status?.message ?? '';
  const mover = spec.datamover ?? '';
  if (!world.dataMovers.has(mover)) {
    return `the data mover "${mover}", which no agent here serves (--data-movers)`;
  }
  const owner = ownerOf(movement);
  if (owner !== undefined && !world.agents.has(owner)) {
    const isGone = !world.nodes.some((node) => node.metadata.name === owner);
    return `the node-agent of ${owner}, which is not running${isGone ? ': the node is gone' : ''}`;
  }
  if (world.agents.size === 0) return 'a node-agent: none is running';
  const pod = world.pods.get(metadata.name);
  if (isCancelWanted(movement)) return 'its cancel to take effect';
  switch (phaseOf(movement)) {
    case 'New':
      return 'a node-agent to accept it';
    case 'Accepted':
      return pod ? podState(pod) : 'its volume to be made available';
    case 'Prepared':
      return `a free place on ${owner ?? 'its node'} (loadConcurrency)`;
    case 'InProgress': {
      const { bytesDone = 0, totalBytes = 0 } = status?.progress ?? {};
      const note = status?.message ? `; ${status.message}` : '';
      return `its data: ${bytesDone} of ${totalBytes} bytes${note}`;
    }
    case 'Canceling':
    case 'Canceled':
    case 'Completed':
    case 'Failed':
      return '';
  }
}

function podState({ spec, status, metadata }: Pod): string {
  const scheduled = status?.conditions?.find(({ type }) => type === 'PodScheduled');
  if (scheduled?.status === 'False')
    return `a node for pod ${metadata.name}: ${scheduled.message ?? ''}`;
  const waiting = status?.containerStatuses?.[0]?.state?.waiting?.reason;
  return `pod ${metadata.name} on ${spec.nodeName ?? 'no node yet'} (${waiting ?? status?.phase ?? 'Pending'})`;
}
