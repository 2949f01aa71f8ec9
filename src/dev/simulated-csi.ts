import { execFile } from 'node:child_process';
import * as fs from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { CodedError, isCode, type Logger, messageOf } from '../base/index.ts';
import {
  Cache,
  Controller,
  type KubeClient,
  keyOf,
  type PersistentVolume,
  type PersistentVolumeClaim,
  PVCS,
  PVS,
  refOf,
  type Result,
  STORAGE_CLASSES,
  VOLUME_SNAPSHOT_CLASSES,
  VOLUME_SNAPSHOT_CONTENTS,
  VOLUME_SNAPSHOTS,
  type VolumeSnapshot,
  type VolumeSnapshotClass,
  type VolumeSnapshotContent,
} from '../kube/index.ts';
import { DEFAULT_SNAPSHOT_CLASS } from './api-server/resources.ts';

const run = promisify(execFile);

export const SIMULATED_DRIVER = 'dir.csi.longshore.dev';
/** Content of a file in a new volume, so that a backup has data. */
const SAMPLE = `${SIMULATED_DRIVER}/sample`;
const SELECTED_NODE = 'volume.kubernetes.io/selected-node';
const PROVISIONED_BY = 'pv.kubernetes.io/provisioned-by';

export interface SimulatedCsiOptions {
  readonly client: KubeClient;
  readonly logger: Logger;
  /** The directory of volumes and snapshots, one directory or image file each. */
  readonly directory: string;
  /** Time until a snapshot is ready. */
  readonly snapshotMs?: number;
}

/**
 * A CSI driver with its provisioner, snapshotter and snapshot controller, for any API server. A
 * volume is a directory, or a sparse file in block mode. A snapshot is a copy of it.
 */
export class SimulatedCsi {
  readonly #options: SimulatedCsiOptions;

  constructor(options: SimulatedCsiOptions) {
    this.#options = options;
  }

  /** Throws `BAD_HANDLE`. */
  volumePath(handle: string): string {
    return join(this.#options.directory, 'volumes', plainName(handle));
  }

  /** Throws `BAD_HANDLE`. */
  snapshotPath(handle: string): string {
    return join(this.#options.directory, 'snapshots', plainName(handle));
  }

  async run(signal: AbortSignal): Promise<void> {
    const { client, logger, directory } = this.#options;
    await fs.mkdir(join(directory, 'volumes'), { recursive: true });
    await fs.mkdir(join(directory, 'snapshots'), { recursive: true });
    const claims = new Cache({ client, logger, resource: PVCS });
    const volumes = new Cache({ client, logger, resource: PVS });
    const snapshots = new Cache({ client, logger, resource: VOLUME_SNAPSHOTS });
    const contents = new Cache({ client, logger, resource: VOLUME_SNAPSHOT_CONTENTS });
    const controller = new Controller({
      name: 'simulated-csi',
      workers: 4,
      logger,
      reconcile: (key) => {
        const at = key.indexOf(' ');
        const ref = refOf(key.slice(at + 1));
        switch (key.slice(0, at)) {
          case 'pvc':
            return this.#provision(claims.get(ref));
          case 'pv':
            return this.#reclaim(volumes.get(ref));
          case 'vs':
            return this.#snapshot(snapshots.get(ref), contents);
          default:
            return this.#content(contents.get(ref), snapshots);
        }
      },
    });
    const { queue } = controller;
    claims.onChange((claim) => {
      if (claim) queue.add(`pvc ${keyOf(claim.metadata)}`);
    });
    volumes.onChange((volume, before) => {
      if (volume) queue.add(`pv ${keyOf(volume.metadata)}`);
      else if (before) void this.#drop(before);
    });
    snapshots.onChange((snapshot, before) => {
      const now = snapshot ?? before;
      if (!now) return;
      if (snapshot) queue.add(`vs ${keyOf(now.metadata)}`);
      // Also covers an unbound content whose snapshot was deleted.
      const content =
        now.status?.boundVolumeSnapshotContentName ??
        now.spec.source.volumeSnapshotContentName ??
        contentNameOf(now);
      queue.addAfter(`vsc ${content}`, snapshot ? 0 : 10);
    });
    contents.onChange((content, before) => {
      if (content) {
        queue.add(`vsc ${content.metadata.name}`);
        const { namespace, name = '' } = content.spec.volumeSnapshotRef;
        queue.add(`vs ${keyOf({ namespace, name })}`);
      } else if (before?.spec.deletionPolicy === 'Delete') void this.#dropSnapshot(before);
    });
    await Promise.all([
      ...[claims, volumes, snapshots, contents].map((cache) => cache.run(signal)),
      controller.run(signal),
    ]);
  }

  /**
   * The external provisioner's part: creates a PV for a claim, and leaves the binding to others.
   */
  async #provision(claim: PersistentVolumeClaim | undefined): Promise<Result | undefined> {
    const { client } = this.#options;
    if (!claim || claim.spec.volumeName || claim.metadata.deletionTimestamp) return undefined;
    // A claim with a selector waits for a volume made for it.
    if (claim.spec.selector) return undefined;
    const className = claim.spec.storageClassName ?? '';
    const storageClass = await client.find(STORAGE_CLASSES, { name: className });
    if (storageClass?.provisioner !== SIMULATED_DRIVER) return undefined;
    const selected = claim.metadata.annotations?.[SELECTED_NODE];
    if (storageClass.volumeBindingMode === 'WaitForFirstConsumer' && selected === undefined) {
      return undefined;
    }
    const { uid, namespace = '', name } = claim.metadata;
    const volume = `pvc-${uid}`;
    if (await client.find(PVS, { name: volume })) return undefined;
    const ready = await this.#fill(claim, this.volumePath(volume));
    if (!ready) return { requeueAfterMs: 200 };
    try {
      await client.create(PVS, {
        metadata: { name: volume, annotations: { [PROVISIONED_BY]: SIMULATED_DRIVER } },
        spec: {
          capacity: { storage: claim.spec.resources?.requests?.storage ?? '1Gi' },
          accessModes: claim.spec.accessModes ?? ['ReadWriteOnce'],
          persistentVolumeReclaimPolicy: storageClass.reclaimPolicy ?? 'Delete',
          storageClassName: className,
          volumeMode: claim.spec.volumeMode ?? 'Filesystem',
          csi: { driver: SIMULATED_DRIVER, volumeHandle: volume },
          claimRef: { apiVersion: 'v1', kind: 'PersistentVolumeClaim', namespace, name, uid },
        },
      });
    } catch (error) {
      if (!isCode(error, 'KUBE_ALREADY_EXISTS')) throw error;
    }
    return undefined;
  }

  /** Returns false while the source snapshot is not ready. */
  async #fill({ metadata, spec }: PersistentVolumeClaim, path: string): Promise<boolean> {
    const { client } = this.#options;
    const { dataSource } = spec;
    if (!dataSource) {
      if (spec.volumeMode === 'Block') {
        const bytes = bytesOf(spec.resources?.requests?.storage ?? '1Gi');
        await fs.writeFile(path, '');
        await fs.truncate(path, bytes);
      } else {
        await fs.mkdir(path, { recursive: true });
        const sample = metadata.annotations?.[SAMPLE];
        if (sample !== undefined) await fs.writeFile(join(path, 'sample.txt'), `${sample}\n`);
      }
      return true;
    }
    const ref = { namespace: metadata.namespace, name: dataSource.name };
    const snapshot = await client.find(VOLUME_SNAPSHOTS, ref);
    const contentName = snapshot?.status?.boundVolumeSnapshotContentName;
    if (snapshot?.status?.readyToUse !== true || contentName === undefined) return false;
    const content = await client.get(VOLUME_SNAPSHOT_CONTENTS, { name: contentName });
    await copy(this.snapshotPath(content.status?.snapshotHandle ?? ''), path);
    return true;
  }

  /** Deletes a released volume if its policy is `Delete`. */
  async #reclaim(volume: PersistentVolume | undefined): Promise<undefined> {
    if (!volume || volume.spec.csi?.driver !== SIMULATED_DRIVER) return;
    const isReleased = volume.status?.phase === 'Released';
    if (!isReleased || volume.spec.persistentVolumeReclaimPolicy !== 'Delete') return;
    await fs.rm(this.volumePath(volume.spec.csi.volumeHandle), { recursive: true, force: true });
    await this.#options.client.delete(PVS, volume.metadata, { uid: volume.metadata.uid });
  }

  async #drop({ spec }: PersistentVolume): Promise<void> {
    if (spec.csi?.driver !== SIMULATED_DRIVER || spec.persistentVolumeReclaimPolicy !== 'Delete')
      return;
    try {
      await fs.rm(this.volumePath(spec.csi.volumeHandle), { recursive: true, force: true });
    } catch (error) {
      this.#options.logger.warn({ error: messageOf(error) }, 'a volume could not be removed');
    }
  }

  /** The snapshot controller's part of a VolumeSnapshot. */
  async #snapshot(
    snapshot: VolumeSnapshot | undefined,
    contents: Cache<VolumeSnapshotContent>,
  ): Promise<Result | undefined> {
    const { client } = this.#options;
    if (!snapshot || snapshot.status?.readyToUse === true) return undefined;
    const { namespace, name, uid } = snapshot.metadata;
    const { persistentVolumeClaimName: claimName, volumeSnapshotContentName: given } =
      snapshot.spec.source;
    const contentName = given ?? contentNameOf(snapshot);
    const content = contents.get({ name: contentName });
    if (!content) {
      if (claimName === undefined) return undefined;
      const claim = await client.find(PVCS, { namespace, name: claimName });
      // The claim has no volume yet.
      if (!claim?.spec.volumeName) return { requeueAfterMs: 500 };
      const volume = await client.find(PVS, { name: claim.spec.volumeName });
      if (volume?.spec.csi?.driver !== SIMULATED_DRIVER) return undefined;
      const snapshotClass = await this.#classOf(snapshot);
      const volumeSnapshotClassName =
        snapshot.spec.volumeSnapshotClassName ?? snapshotClass?.metadata.name;
      if (volumeSnapshotClassName !== snapshot.spec.volumeSnapshotClassName) {
        const patch = { spec: { volumeSnapshotClassName } };
        await client.patch(VOLUME_SNAPSHOTS, snapshot.metadata, patch);
      }
      const created = client.create(VOLUME_SNAPSHOT_CONTENTS, {
        metadata: { name: contentName },
        spec: {
          deletionPolicy: snapshotClass?.deletionPolicy ?? 'Delete',
          driver: SIMULATED_DRIVER,
          source: { volumeHandle: volume.spec.csi.volumeHandle },
          ...(volumeSnapshotClassName !== undefined && { volumeSnapshotClassName }),
          volumeSnapshotRef: {
            apiVersion: 'snapshot.storage.k8s.io/v1',
            kind: 'VolumeSnapshot',
            ...(namespace !== undefined && { namespace }),
            name,
            uid,
          },
        },
      });
      // The watch may not have reported the content yet.
      await created.catch((error: unknown) => {
        if (!isCode(error, 'KUBE_ALREADY_EXISTS')) throw error;
      });
      return undefined;
    }
    if (content.status?.readyToUse !== true) return undefined;
    const size = await sizeOf(this.snapshotPath(content.status.snapshotHandle ?? ''));
    await client.patch(
      VOLUME_SNAPSHOTS,
      { namespace, name },
      {
        status: {
          boundVolumeSnapshotContentName: contentName,
          readyToUse: true,
          restoreSize: String(size),
          creationTime: snapshot.metadata.creationTimestamp,
        },
      },
      { subresource: 'status' },
    );
    return undefined;
  }

  /** The class of a snapshot, or the default class of this driver. */
  async #classOf({ spec }: VolumeSnapshot): Promise<VolumeSnapshotClass | undefined> {
    const { client } = this.#options;
    const name = spec.volumeSnapshotClassName;
    if (name !== undefined) return client.find(VOLUME_SNAPSHOT_CLASSES, { name });
    const classes = await client.list(VOLUME_SNAPSHOT_CLASSES);
    return classes.find(
      ({ driver, metadata }) =>
        driver === SIMULATED_DRIVER && metadata.annotations?.[DEFAULT_SNAPSHOT_CLASS] === 'true',
    );
  }

  /** The snapshotter's part of a VolumeSnapshotContent. */
  async #content(
    content: VolumeSnapshotContent | undefined,
    snapshots: Cache<VolumeSnapshot>,
  ): Promise<Result | undefined> {
    const { client, snapshotMs = 0 } = this.#options;
    if (!content || content.spec.driver !== SIMULATED_DRIVER) return undefined;
    if (content.metadata.deletionTimestamp !== undefined) {
      // A sidecar also deletes the snapshot before the content.
      if (content.spec.deletionPolicy === 'Delete') await this.#dropSnapshot(content);
      const { uid, resourceVersion, finalizers = [] } = content.metadata;
      // Finalizers of other controllers stay.
      const rest = finalizers.filter((each) => !each.startsWith('snapshot.storage.kubernetes.io/'));
      if (rest.length === finalizers.length) return undefined;
      const patch = { metadata: { uid, resourceVersion, finalizers: rest } };
      await client.patch(VOLUME_SNAPSHOT_CONTENTS, content.metadata, patch).catch(ifThere);
      return undefined;
    }
    const { namespace, name = '' } = content.spec.volumeSnapshotRef;
    // The snapshot was deleted: follow the deletion policy.
    if (!snapshots.get({ namespace, name })) {
      if (await client.find(VOLUME_SNAPSHOTS, { namespace, name })) return { requeueAfterMs: 100 };
      if (content.spec.deletionPolicy === 'Delete') {
        const { uid } = content.metadata;
        await client.delete(VOLUME_SNAPSHOT_CONTENTS, content.metadata, { uid });
      }
      return undefined;
    }
    if (content.status?.readyToUse === true) return undefined;
    const { snapshotHandle, volumeHandle } = content.spec.source;
    const handle = snapshotHandle ?? `snap-${content.metadata.uid}`;
    if (volumeHandle !== undefined) {
      if (snapshotMs > 0) await new Promise((resume) => setTimeout(resume, snapshotMs));
      await copy(this.volumePath(volumeHandle), this.snapshotPath(handle));
    }
    const size = await sizeOf(this.snapshotPath(handle));
    await client.patch(
      VOLUME_SNAPSHOT_CONTENTS,
      { name: content.metadata.name },
      { status: { snapshotHandle: handle, readyToUse: true, restoreSize: size } },
      { subresource: 'status' },
    );
    return undefined;
  }

  async #dropSnapshot({ status, spec }: VolumeSnapshotContent): Promise<void> {
    const handle = status?.snapshotHandle ?? spec.source.snapshotHandle;
    if (handle === undefined || spec.driver !== SIMULATED_DRIVER) return;
    try {
      await fs.rm(this.snapshotPath(handle), { recursive: true, force: true });
    } catch (error) {
      this.#options.logger.warn({ error: messageOf(error) }, 'a snapshot could not be removed');
    }
  }
}

function ifThere(error: unknown): void {
  if (!isCode(error, 'KUBE_NOT_FOUND')) throw error;
}

const contentNameOf = ({ metadata }: VolumeSnapshot): string => `snapcontent-${metadata.uid}`;

/**
 * Any client with the token can set handles. An invalid handle could lead outside the directory.
 */
function plainName(handle: string): string {
  if (handle !== '' && !/^\.{1,2}$|[/\0]/.test(handle)) return handle;
  throw new CodedError('BAD_HANDLE', `"${handle}" is not the handle of a volume or snapshot`);
}

/** Atomic: an existing target is complete. */
async function copy(from: string, to: string): Promise<void> {
  const temporary = `${to}.tmp`;
  await fs.rm(temporary, { recursive: true, force: true });
  await run('cp', ['-a', '--reflink=auto', '--sparse=auto', from, temporary]);
  await fs.rm(to, { recursive: true, force: true });
  await fs.rename(temporary, to);
}

async function sizeOf(path: string): Promise<number> {
  const stat = await fs.stat(path).catch(() => undefined);
  if (!stat) return 0;
  if (stat.isFile()) return stat.size;
  let total = 0;
  for (const entry of await fs.readdir(path, { recursive: true, withFileTypes: true })) {
    if (entry.isFile()) total += (await fs.stat(join(entry.parentPath, entry.name))).size;
  }
  return total;
}

function bytesOf(quantity: string): number {
  const [, number = '0', unit = ''] = /^([\d.]+)([KMGT]i)?$/.exec(quantity) ?? [];
  const power = unit === '' ? 0 : 'KMGT'.indexOf(unit.charAt(0)) + 1;
  return Number(number) * 1024 ** power;
}
