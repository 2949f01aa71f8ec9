import { targetProblem } from '../../../src/exposer/in-place-target.ts';
import {
  BACKUP_REPOSITORIES,
  DATA_DOWNLOADS,
  DATA_UPLOADS,
  type DataDownload,
  isInPlace,
  type KubeObject,
  POD_VOLUME_BACKUPS,
  POD_VOLUME_RESTORES,
  PODS,
  PVCS,
  PVS,
  type Resource,
} from '../../../src/kube/index.ts';
import { take } from '../backups/cluster.ts';
import { type Loose, NAMESPACE, volumeHandle } from '../objects.ts';
import { handOver } from '../restores/cluster.ts';
import type { World } from '../world.ts';

export interface AgentOptions {
  readonly world: World;
  /** Contents by snapshot ID, of all clusters. */
  readonly repository: Map<string, string>;
  /** Called for each stored snapshot. */
  readonly onStored: (id: string, by: Loose) => void;
}

type Step = (object: Loose) => void;

/** The agent gives up on a claim after this many polls. */
const CLAIM_POLLS_MAX = 200;
const HALF = 'half of something';
const FINAL = ['Completed', 'Failed', 'Canceled'];

/**
 * Simulates a node-agent: it carries out every object of its kinds, even if the object is older
 * than the agent. Each phase is a step, so a restarted agent continues.
 */
export class NightAgent {
  readonly #options: AgentOptions;
  readonly #steps: readonly (readonly [Resource<KubeObject>, Step])[];
  /** Snapshots of the storage by UID of their DataUpload. */
  readonly #handles = new Map<string, string>();
  readonly #polls = new Map<string, number>();
  #life = 0;

  constructor(options: AgentOptions) {
    this.#options = options;
    const { world } = options;
    this.#steps = [
      [DATA_UPLOADS, (object) => this.#upload(object)],
      [DATA_DOWNLOADS, (object) => this.#download(object)],
      [POD_VOLUME_BACKUPS, (object) => this.#podBackup(object)],
      [POD_VOLUME_RESTORES, (object) => this.#podRestore(object)],
    ] as [Resource<KubeObject>, Step][];
    for (const [resource, step] of this.#steps) {
      world.store.watch(resource, {}, world.store.version, (type, { metadata }) => {
        if (type === 'ADDED') this.#next(resource, step, metadata);
      });
    }
    world.store.watch(BACKUP_REPOSITORIES, {}, world.store.version, (type, { metadata }) => {
      if (type !== 'ADDED') return;
      world.after(500, 5000, () => {
        world.patch(BACKUP_REPOSITORIES, NAMESPACE, metadata.name, { status: { phase: 'Ready' } });
      });
    });
  }

  /** Kills the agent. A new one starts later, and lists all objects. */
  kill(): void {
    this.#life++;
    const { world } = this.#options;
    world.after(3000, 60_000, () => {
      for (const [resource, step] of this.#steps) {
        for (const { metadata } of world.store.list(resource)) {
          this.#next(resource, step, metadata);
        }
      }
    });
  }

  #next(
    resource: Resource<KubeObject>,
    step: Step,
    { namespace, name, uid }: KubeObject['metadata'],
  ): void {
    if (namespace !== NAMESPACE) return;
    const life = this.#life;
    const { world } = this.#options;
    world.after(500, 20_000, () => {
      const now = world.find(resource, name, NAMESPACE);
      if (life !== this.#life || now?.metadata.uid !== uid) return;
      if (FINAL.includes(String(now.status?.phase))) return;
      if (now.spec.cancel === true) this.#set(resource, now, { phase: 'Canceled' });
      else {
        step(now);
        this.#next(resource, step, now.metadata);
      }
    });
  }

  #set(resource: Resource<KubeObject>, { metadata }: Loose, status: object): void {
    const { phase } = status as { phase?: string };
    const completionTimestamp = new Date(0).toISOString();
    const end = FINAL.includes(phase ?? '') ? { completionTimestamp } : {};
    const patch = { status: { ...status, ...end } };
    this.#options.world.patch(resource, NAMESPACE, metadata.name, patch);
  }

  #upload(upload: Loose): void {
    const { world, repository, onStored } = this.#options;
    const { uid } = upload.metadata;
    const { volumeSnapshot = '' } = upload.spec.csiSnapshot as { volumeSnapshot?: string };
    switch (upload.status?.phase ?? '') {
      case '':
      case 'New': {
        const handle = take(world, String(upload.spec.sourceNamespace), volumeSnapshot);
        if (handle === undefined) {
          this.#set(DATA_UPLOADS, upload, { phase: 'Failed', message: 'no snapshot' });
          return;
        }
        this.#handles.set(uid, handle);
        this.#set(DATA_UPLOADS, upload, { phase: 'Accepted' });
        return;
      }
      case 'Accepted':
        this.#begin(DATA_UPLOADS, upload);
        return;
      default: {
        const handle = this.#handles.get(uid) ?? '';
        const snapshotID = `id-${uid}`;
        repository.set(snapshotID, world.snapshots.get(handle) ?? '');
        world.snapshots.delete(handle);
        onStored(snapshotID, upload);
        this.#done(DATA_UPLOADS, upload, { snapshotID });
      }
    }
  }

  #begin(resource: Resource<KubeObject>, object: Loose): void {
    const startTimestamp = new Date(0).toISOString();
    const progress = { totalBytes: 10, bytesDone: 1 };
    this.#set(resource, object, { phase: 'InProgress', startTimestamp, progress });
  }

  #done(resource: Resource<KubeObject>, object: Loose, more: object = {}): void {
    const progress = { totalBytes: 10, bytesDone: 10 };
    this.#set(resource, object, { phase: 'Completed', progress, ...more });
  }

  #download(object: Loose): void {
    const { world, repository } = this.#options;
    const fail = (message: string): void => {
      this.#set(DATA_DOWNLOADS, object, { phase: 'Failed', message });
    };
    const download = object as unknown as DataDownload;
    const { namespace, pvc } = download.spec.targetVolume;
    const claim = world.find(PVCS, pvc, namespace);
    const volume = claim && world.find(PVS, String(claim.spec.volumeName));
    const problem = isInPlace(download)
      ? targetProblem(download, claim, volume)
      : claim?.status?.phase === 'Bound' && 'the claim is bound already';
    if (typeof problem === 'string') {
      fail(problem);
      return;
    }
    const phase = object.status?.phase ?? '';
    if (phase === '' || phase === 'New') {
      this.#set(DATA_DOWNLOADS, object, { phase: 'Accepted' });
      return;
    }
    if (!claim) {
      const polls = (this.#polls.get(object.metadata.uid) ?? 0) + 1;
      this.#polls.set(object.metadata.uid, polls);
      if (polls > CLAIM_POLLS_MAX) fail(`claim ${namespace}/${pvc} is not there`);
      return;
    }
    if (phase === 'Accepted') {
      this.#begin(DATA_DOWNLOADS, object);
      if (volume && isInPlace(download)) world.volumes.set(volumeHandle(volume), HALF);
      return;
    }
    const content = repository.get(download.spec.snapshotID);
    if (content === undefined) {
      fail(`there is no snapshot ${download.spec.snapshotID}`);
      return;
    }
    if (volume && isInPlace(download)) world.volumes.set(volumeHandle(volume), content);
    else if (world.find(PVS, `pv-moved-${claim.metadata.uid}`)) {
      fail('another download has filled the claim');
      return;
    } else handOver(world, namespace, pvc, content);
    this.#done(DATA_DOWNLOADS, object);
  }

  #podBackup(object: Loose): void {
    const { world, repository, onStored } = this.#options;
    if ((object.status?.phase ?? '') !== 'InProgress') {
      this.#begin(POD_VOLUME_BACKUPS, object);
      return;
    }
    const snapshotID = `id-${object.metadata.uid}`;
    const handle = this.#volumeOfPod(object);
    const content = handle === undefined ? undefined : world.volumes.get(handle);
    if (content === undefined) {
      this.#set(POD_VOLUME_BACKUPS, object, { phase: 'Failed', message: 'the pod is gone' });
      return;
    }
    repository.set(snapshotID, content);
    onStored(snapshotID, object);
    this.#done(POD_VOLUME_BACKUPS, object, { snapshotID });
  }

  #podRestore(object: Loose): void {
    const { world, repository } = this.#options;
    const handle = this.#volumeOfPod(object);
    const content = repository.get(String(object.spec.snapshotID));
    if (handle === undefined) {
      // The claim is not bound yet, or the pod was deleted.
      const polls = (this.#polls.get(object.metadata.uid) ?? 0) + 1;
      this.#polls.set(object.metadata.uid, polls);
      if (polls <= CLAIM_POLLS_MAX) return;
    }
    if (handle === undefined || content === undefined) {
      const message = handle === undefined ? 'the pod is gone' : 'there is no such snapshot';
      this.#set(POD_VOLUME_RESTORES, object, { phase: 'Failed', message });
    } else if (object.status?.phase !== 'InProgress') {
      world.volumes.set(handle, HALF);
      this.#begin(POD_VOLUME_RESTORES, object);
    } else {
      world.volumes.set(handle, content);
      this.#done(POD_VOLUME_RESTORES, object);
    }
  }

  /** The handle of the volume that a pod has mounted. */
  #volumeOfPod({ spec }: Loose): string | undefined {
    const { world } = this.#options;
    const { namespace = '', name = '', uid } = spec.pod as Record<string, string>;
    const pod = world.find(PODS, name, namespace);
    if (pod?.metadata.uid !== uid) return undefined;
    const volumes = (pod?.spec.volumes ?? []) as {
      name: string;
      persistentVolumeClaim?: { claimName: string };
    }[];
    const found = volumes.find((each) => each.name === spec.volume);
    const claim = world.find(PVCS, found?.persistentVolumeClaim?.claimName ?? '', namespace);
    if (claim?.status?.phase !== 'Bound') return undefined;
    const volume = world.find(PVS, String(claim.spec.volumeName));
    return volume && volumeHandle(volume);
  }
}
