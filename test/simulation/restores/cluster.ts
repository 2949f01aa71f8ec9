import type { Stored } from '../../../src/dev/api-server/store.ts';
import {
  BACKUP_REPOSITORIES,
  BACKUP_STORAGE_LOCATIONS,
  BACKUPS,
  CONFIG_MAPS,
  DATA_DOWNLOADS,
  type KubeObject,
  NAMESPACES,
  POD_VOLUME_RESTORES,
  PODS,
  PVCS,
  PVS,
  type Resource,
  RESTORES,
} from '../../../src/kube/index.ts';
import { type Loose, NAMESPACE } from '../objects.ts';
import type { Random } from '../virtual-time.ts';
import type { World } from '../world.ts';
import { BACKUP, BACKUP_SPEC, type BackedUp, HOOKED } from './backup.ts';

export const RESTORE = 'r1';
const NODE = 'node';
const MAPPED = { 'app-b': 'app-c' };
/** The agent gives up on a claim after this many polls. */
const CLAIM_POLLS_MAX = 400;

/** A Restore, and the initial objects of its cluster. */
export interface Target {
  readonly restore: KubeObject;
  /** Target namespaces. */
  readonly spaces: readonly string[];
  readonly isUpdate: boolean;
}

/** `onFilled`: called before the Restore is created. */
export function fill(world: World, random: Random, onFilled: () => void): Target {
  const { store } = world;
  const create = (resource: Resource<KubeObject>, namespace: string | undefined, o: object) =>
    store.create(resource, namespace, o as Stored);
  const isMapped = random.chance(0.3);
  const isUpdate = random.chance(0.3);
  const spaces = ['app-a', isMapped ? 'app-c' : 'app-b'];
  create(NAMESPACES, undefined, { metadata: { name: NAMESPACE } });
  create(PODS, NAMESPACE, {
    metadata: { name: 'agent', labels: { role: 'node-agent' } },
    spec: { nodeName: NODE, containers: [] },
  });
  world.patch(PODS, NAMESPACE, 'agent', { status: { phase: 'Running' } });
  const [, second = ''] = spaces;
  if (random.chance(0.5)) {
    create(NAMESPACES, undefined, { metadata: { name: second } });
    // The first object differs from the backup, and the second is the same.
    for (const [i, text] of ['of the cluster', 'of the backup'].entries()) {
      const metadata = { name: `map-app-b-${i}` };
      create(CONFIG_MAPS, second, { metadata, data: { text } });
    }
  }
  addLocation(world);
  addBackup(world);
  onFilled();
  const restore = create(RESTORES, NAMESPACE, {
    metadata: { name: RESTORE },
    spec: {
      backupName: BACKUP,
      ...(isMapped && { namespaceMapping: MAPPED }),
      ...(isUpdate && { existingResourcePolicy: 'update' }),
      hooks: {
        resources: ['run', 'fail'].map((name) => ({
          name,
          labelSelector: { matchLabels: HOOKED },
          postHooks: [{ exec: { command: [name] } }],
        })),
      },
    },
  }) as unknown as KubeObject;
  return { restore, spaces, isUpdate };
}

export function addLocation(world: World): void {
  world.store.create(BACKUP_STORAGE_LOCATIONS, NAMESPACE, {
    metadata: { name: 'default' },
    spec: { provider: 'aws', objectStorage: { bucket: 'b' }, default: true },
    status: { phase: 'Available' },
  } as never);
}

export function addBackup(world: World, location?: string): void {
  world.store.create(BACKUPS, NAMESPACE, {
    metadata: { name: BACKUP },
    spec: { ...BACKUP_SPEC, ...(location !== undefined && { storageLocation: location }) },
    status: { phase: 'Completed' },
  } as never);
}

/** Checks on the simulated nodes and agents. */
export interface Serving {
  readonly world: World;
  readonly backedUp: BackedUp;
  readonly problem: (text: string) => void;
  readonly note: (what: string) => void;
  /** Whether the Restore was deleted. Its dependents are then collected, even later ones. */
  readonly isOrphaned: () => boolean;
}

/** Whether an agent continues with an object. If it was canceled, sets the phase. */
function goesOn(world: World, resource: Resource<KubeObject>, name: string): boolean {
  const now = world.find(resource, name, NAMESPACE);
  if (!now) return false;
  if (now.spec.cancel !== true) return true;
  const completionTimestamp = new Date(0).toISOString();
  if (now.status?.phase !== 'Canceled') {
    world.patch(resource, NAMESPACE, name, { status: { phase: 'Canceled', completionTimestamp } });
  }
  return false;
}

/** Kubernetes' garbage collector, for objects created after their owner's deletion. */
function collectOrphan(
  { world, isOrphaned }: Serving,
  resource: Resource<KubeObject>,
  name: string,
) {
  if (!isOrphaned()) return;
  world.after(100, 20_000, () => {
    world.delete(resource, NAMESPACE, name);
  });
}

/** Node-agents: a DataDownload waits for its claim, is moved, and hands its volume over. */
export function serveDownloads(serving: Serving): void {
  const { world, backedUp, problem, note } = serving;
  const begun = new Set<string>();
  world.store.watch(DATA_DOWNLOADS, {}, world.store.version, (type, object) => {
    if (type !== 'ADDED') return;
    const { metadata, spec } = object as unknown as Loose;
    const { namespace, pvc } = spec.targetVolume as { namespace: string; pvc: string };
    collectOrphan(serving, DATA_DOWNLOADS, metadata.name);
    if (begun.has(pvc)) problem(`${namespace}/${pvc} has a second DataDownload`);
    begun.add(pvc);
    note('downloads');
    const set = (status: object): void => {
      world.patch(DATA_DOWNLOADS, NAMESPACE, metadata.name, { status });
    };
    const fail = (message: string): void => {
      set({ phase: 'Failed', message, completionTimestamp: new Date(0).toISOString() });
    };
    const going = (): boolean => goesOn(world, DATA_DOWNLOADS, metadata.name);
    const move = (): void => {
      const startTimestamp = new Date(0).toISOString();
      set({ phase: 'InProgress', startTimestamp, progress: { totalBytes: 10, bytesDone: 1 } });
      world.after(1000, 60_000, () => {
        if (!going()) return;
        set({ progress: { totalBytes: 10, bytesDone: 6 } });
        world.after(1000, 60_000, () => {
          if (!going()) return;
          if (backedUp.failing.has(pvc)) {
            fail('the volume broke');
            return;
          }
          if (!handOver(world, namespace, pvc)) {
            fail(`claim ${namespace}/${pvc} is gone`);
            return;
          }
          const completionTimestamp = new Date(0).toISOString();
          const progress = { totalBytes: 10, bytesDone: 10 };
          set({ phase: 'Completed', progress, completionTimestamp });
        });
      });
    };
    const waitForClaim = (polls: number): void => {
      if (!going()) return;
      if (world.find(PVCS, pvc, namespace)) move();
      else if (polls > CLAIM_POLLS_MAX) fail(`claim ${namespace}/${pvc} is not there`);
      else {
        world.after(5000, 5000, () => {
          waitForClaim(polls + 1);
        });
      }
    };
    world.after(500, 10_000, () => {
      if (!going()) return;
      set({ phase: 'Accepted' });
      world.after(1000, 10_000, () => {
        waitForClaim(0);
      });
    });
  });
}

/** Gives the filled volume to the claim; false if the claim was deleted. */
export function handOver(
  world: World,
  namespace: string,
  name: string,
  content = `content of ${name}`,
): boolean {
  const claim = world.find(PVCS, name, namespace);
  if (!claim) return false;
  const { uid } = claim.metadata;
  const { matchLabels } = (claim.spec.selector ?? {}) as { matchLabels?: Record<string, string> };
  const handle = `moved-${uid}`;
  world.volumes.set(handle, content);
  world.store.create(PVS, undefined, {
    metadata: { name: `pv-${handle}`, labels: matchLabels },
    spec: {
      csi: { driver: 'csi.simulated', volumeHandle: handle },
      storageClassName: 'simulated',
      persistentVolumeReclaimPolicy: 'Delete',
      claimRef: { namespace, name, uid },
    },
  } as never);
  return true;
}

/** Simulates restores of pods' files, and repositories that become ready. */
export function serveFiles(serving: Serving): void {
  const { world, problem, note } = serving;
  world.store.watch(BACKUP_REPOSITORIES, {}, world.store.version, (type, { metadata }) => {
    if (type !== 'ADDED') return;
    world.after(500, 5000, () => {
      world.patch(BACKUP_REPOSITORIES, NAMESPACE, metadata.name, { status: { phase: 'Ready' } });
    });
  });
  const begun = new Set<string>();
  world.store.watch(POD_VOLUME_RESTORES, {}, world.store.version, (type, object) => {
    if (type !== 'ADDED') return;
    const { metadata, spec } = object as unknown as Loose;
    const { namespace = '', name = '', uid = '' } = spec.pod as Record<string, string>;
    collectOrphan(serving, POD_VOLUME_RESTORES, metadata.name);
    if (begun.has(uid)) problem(`${namespace}/${name} has a second PodVolumeRestore`);
    begun.add(uid);
    note('PodVolumeRestores');
    const set = (status: object): void => {
      world.patch(POD_VOLUME_RESTORES, NAMESPACE, metadata.name, { status });
    };
    const time = new Date(0).toISOString();
    const going = (): boolean => {
      if (!goesOn(world, POD_VOLUME_RESTORES, metadata.name)) return false;
      if (world.find(PODS, name, namespace)?.metadata.uid === uid) return true;
      set({ phase: 'Failed', message: `pod ${namespace}/${name} is gone` });
      return false;
    };
    world.after(500, 20_000, () => {
      if (!going()) return;
      set({ phase: 'InProgress', startTimestamp: time });
      world.after(1000, 60_000, () => {
        if (!going()) return;
        const progress = { totalBytes: 10, bytesDone: 10 };
        set({ phase: 'Completed', progress, completionTimestamp: time });
      });
    });
  });
}

/** Scheduler and kubelets: a pod runs after its claims are bound and its volumes are marked. */
export function servePods({ world, backedUp }: Serving, spaces: readonly string[]): void {
  world.store.watch(PODS, {}, world.store.version, (type, object) => {
    const { metadata, spec } = object as unknown as Loose;
    const { namespace = '', name, uid } = metadata;
    if (type !== 'ADDED' || !spaces.includes(namespace)) return;
    const { startMs = 1000 } = backedUp.pods.get(name) ?? {};
    const volumes = (spec.volumes ?? []) as Record<string, { claimName: string }>[];
    const claims = volumes.flatMap(({ persistentVolumeClaim: each }) => each?.claimName ?? []);
    const [wait] = (spec.initContainers ?? []) as { volumeMounts: object[] }[];
    const filled = wait?.volumeMounts.length ?? 0;
    const isReady = (): boolean => {
      const labelSelector = `velero.io/pod-uid=${uid}`;
      const done = world.store
        .list(POD_VOLUME_RESTORES, { labelSelector })
        .filter(({ status }) => (status as { phase?: string } | undefined)?.phase === 'Completed');
      const bound = claims.every(
        (claim) => world.find(PVCS, claim, namespace)?.status?.phase === 'Bound',
      );
      return bound && done.length >= filled;
    };
    const isThere = (): boolean => world.find(PODS, name, namespace)?.metadata.uid === uid;
    const look = (): void => {
      if (!isThere()) return;
      if (!isReady()) {
        world.after(3000, 6000, look);
        return;
      }
      world.after(startMs, startMs, () => {
        if (!isThere()) return;
        const containers = spec.containers as { name: string }[];
        const containerStatuses = containers.map((each) => ({
          name: each.name,
          ready: true,
          state: { running: {} },
        }));
        world.patch(PODS, namespace, name, { status: { phase: 'Running', containerStatuses } });
      });
    };
    world.after(300, 3000, () => {
      world.patch(PODS, namespace, name, { spec: { nodeName: NODE } });
      look();
    });
  });
}
