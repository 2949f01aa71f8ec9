import { messageOf, silentLogger } from '../../base/index.ts';
import {
  Cache,
  DATA_DOWNLOADS,
  DATA_UPLOADS,
  isPassing,
  type KubeClient,
  type KubeObject,
  NODES,
  type Node,
  type PersistentVolumeClaim,
  type Pod,
  POD_VOLUME_BACKUPS,
  POD_VOLUME_RESTORES,
  PODS,
  PVCS,
} from '../../kube/index.ts';
import { isFinal, type Movement, phaseOf } from '../movement.ts';
import {
  type AgentGroup,
  loadAgentGroups,
  type ServingFlags,
  unlessRefused,
} from './serving-agents.ts';
import type { StatusWorld } from './status.ts';

export interface StatusQuery {
  readonly client: KubeClient;
  readonly namespace: string;
  readonly flags?: ServingFlags;
  /** How often to read the {@link Facts}; {@link FACTS_EVERY_MS} by default. */
  readonly factsEveryMs?: number;
}

/** Reads everything once. Throws `KUBE_*` errors. */
export async function readStatus(query: StatusQuery): Promise<StatusWorld> {
  const { client, namespace } = query;
  const [ups, downs, pods, backups, restores] = await Promise.all([
    client.list(DATA_UPLOADS, { namespace }),
    client.list(DATA_DOWNLOADS, { namespace }),
    client.list(PODS, { namespace }),
    unlessRefused(client.list(POD_VOLUME_BACKUPS, { namespace })),
    unlessRefused(client.list(POD_VOLUME_RESTORES, { namespace })),
  ]);
  const movements = [...ups, ...downs, ...(backups ?? []), ...(restores ?? [])];
  const facts = await readFacts(query, pods, movements);
  return { ...facts, movements, pods, nowMs: nowMsOf(client) };
}

/** Throws `KUBE_*` errors if a required right is missing or the API server does not answer. */
export async function assertReadable({ client, namespace }: StatusQuery): Promise<void> {
  await Promise.all([
    client.listPage(DATA_UPLOADS, { namespace, limit: 1 }),
    client.listPage(DATA_DOWNLOADS, { namespace, limit: 1 }),
    client.listPage(PODS, { namespace, limit: 1 }),
  ]);
}

const nowMsOf = ({ clock }: KubeClient): number => Number(clock.nowNs() / 1_000_000n);

/** Facts that seldom change, read again from time to time. */
interface Facts {
  readonly groups: readonly AgentGroup[];
  readonly nodes: readonly Node[] | undefined;
  readonly claims: readonly PersistentVolumeClaim[] | undefined;
  readonly targets: StatusWorld['targets'];
}

async function readFacts(
  { client, namespace, flags }: StatusQuery,
  pods: readonly Pod[],
  movements: readonly Movement[],
): Promise<Facts> {
  const [groups, nodes, claims, targets] = await Promise.all([
    loadAgentGroups(client, namespace, pods, flags),
    unlessRefused(client.list(NODES)),
    unlessRefused(client.list(PVCS, { namespace })),
    readTargets(client, movements),
  ]);
  return { groups, nodes, claims, targets };
}

/** Sends one request for each target namespace of waiting restores. */
async function readTargets(
  client: KubeClient,
  movements: readonly Movement[],
): Promise<StatusWorld['targets']> {
  const wanted = new Set(
    movements.flatMap((movement) =>
      'targetVolume' in movement.spec && phaseOf(movement) === 'New'
        ? [(movement.spec.targetVolume as { namespace: string }).namespace]
        : [],
    ),
  );
  const namespaces = new Set<string>();
  const names = new Set<string>();
  for (const namespace of wanted) {
    const claims = await unlessRefused(client.list(PVCS, { namespace }));
    if (!claims) continue;
    namespaces.add(namespace);
    for (const { metadata } of claims) names.add(`${namespace}/${metadata.name}`);
  }
  return { namespaces, names };
}

const FACTS_EVERY_MS = 15_000;
/** Longest wait for fresh facts. Our choice. */
const READING_MS = 2000;
/** Watches end and restart all the time. Only a longer outage is shown. */
const AWAY_MS = 5000;
/** Bookmarks come about every minute. A server silent for longer is away, even if connected. */
const SILENT_MS = 100_000;

/** Follows the cluster by watches. During an outage it shows the last known state. */
export class StatusFollower {
  readonly #query: StatusQuery;
  readonly #caches: readonly [Cache<Movement>, Cache<Movement>, Cache<Pod>];
  /** CRs of pod volumes, shown if they can be read. */
  readonly #others: readonly Cache<Movement>[];
  #facts: Facts | undefined;
  #factsFailure: string | undefined;
  #factsMs = -Infinity;
  #reading: Promise<void> | undefined;

  constructor(query: StatusQuery) {
    this.#query = query;
    const { client, namespace } = query;
    const scope = { namespace };
    const common = { client, logger: silentLogger, scope };
    this.#caches = [
      new Cache<Movement>({ ...common, resource: DATA_UPLOADS, trim: shortened }),
      new Cache<Movement>({ ...common, resource: DATA_DOWNLOADS, trim: shortened }),
      new Cache<Pod>({ ...common, resource: PODS, trim: outlined }),
    ];
    this.#others = [POD_VOLUME_BACKUPS, POD_VOLUME_RESTORES].map(
      (resource) =>
        new Cache<Movement>({
          ...common,
          resource: resource,
          trim: shortened,
        }),
    );
  }

  async run(signal: AbortSignal): Promise<void> {
    const [ups, downs, pods] = this.#caches;
    const others = this.#others.map((cache) => cache.run(signal));
    await Promise.all([ups.run(signal), downs.run(signal), pods.run(signal), ...others]);
    await this.#reading;
  }

  /** The known state; undefined before the first read. Refreshes facts in the background. */
  look(): StatusWorld | undefined {
    const [ups, downs, pods] = this.#caches;
    if (!this.#caches.every(({ isSynced }) => isSynced)) return undefined;
    // Do not wait for kinds that cannot be read.
    const isRead = ({ isSynced, failure }: Cache<Movement>): boolean =>
      isSynced || failure !== undefined;
    if (!this.#others.every(isRead)) return undefined;
    const others = this.#others.flatMap((cache) => cache.list());
    const movements = [...ups.list(), ...downs.list(), ...others];
    const podList = pods.list();
    if (!this.#reading && performance.now() - this.#factsMs > this.#factsEveryMs) {
      this.#reading = readFacts(this.#query, podList, movements)
        .then(
          (facts) => {
            this.#facts = facts;
            this.#factsMs = performance.now();
            this.#factsFailure = undefined;
          },
          (error: unknown) => {
            this.#factsFailure = isPassing(error) ? undefined : messageOf(error);
          },
        )
        .finally(() => {
          this.#reading = undefined;
        });
    }
    if (!this.#facts) return undefined;
    return { ...this.#facts, movements, pods: podList, nowMs: nowMsOf(this.#query.client) };
  }

  /** Like `look`, but first waits a bounded time for old facts to be refreshed. */
  async lookAnew(): Promise<StatusWorld | undefined> {
    this.look();
    const isOld = performance.now() - this.#factsMs > 2 * this.#factsEveryMs;
    if (isOld && this.#reading) {
      const { promise, resolve } = Promise.withResolvers<undefined>();
      const timer = setTimeout(resolve, READING_MS, undefined);
      await Promise.race([this.#reading, promise]);
      clearTimeout(timer);
    }
    return this.look();
  }

  get #factsEveryMs(): number {
    return this.#query.factsEveryMs ?? FACTS_EVERY_MS;
  }

  /** Why the shown state may be old, in a sentence; undefined while all is well. */
  get outage(): string | undefined {
    for (const { failure, silentMs, resource } of this.#caches) {
      const isAway = failure === undefined ? silentMs > SILENT_MS : silentMs > AWAY_MS;
      if (!isAway || (failure === undefined && silentMs === Infinity)) continue;
      const time = silentMs === Infinity ? '' : ` for ${Math.round(silentMs / 1000)} s`;
      return `no response from the API server for ${resource.plural}${time}: ${failure ?? 'the watch is silent'}`;
    }
    return this.#factsFailure;
  }
}

/** Fields of metadata, spec and status that are not shown for CRs in a final phase. */
const UNSHOWN = new Set([
  ...['annotations', 'ownerReferences', 'csiSnapshot', 'dataMoverConfig', 'tags'],
  'dataMoverResult',
]);

/** Clusters keep many thousands of CRs in a final phase. */
function shortened<M extends Movement & KubeObject>(movement: M): M {
  if (!isFinal(movement)) return movement;
  const { metadata, spec, status } = movement;
  return {
    ...movement,
    metadata: shownOf(metadata),
    spec: shownOf(spec),
    ...(status && { status: shownOf(status) }),
  };
}

const shownOf = <T extends object>(part: T): T =>
  Object.fromEntries(Object.entries(part).filter(([key]) => !UNSHOWN.has(key))) as T;

/** The parts of a pod that its state needs. */
function outlined({ apiVersion, kind, metadata, spec, status }: Pod): Pod {
  return {
    ...(apiVersion !== undefined && { apiVersion }),
    ...(kind !== undefined && { kind }),
    metadata,
    spec: { containers: [], ...(spec.nodeName !== undefined && { nodeName: spec.nodeName }) },
    ...(status && { status }),
  };
}
