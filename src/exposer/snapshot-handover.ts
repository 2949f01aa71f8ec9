import { CodedError, isCode } from '../base/index.ts';
import {
  BEING_CREATED,
  BEING_DELETED,
  CONTENT_FINALIZER,
  type DataUpload,
  type NewObject,
  type ObjectRef,
  untilHandleTold,
  VOLUME_SNAPSHOT_CONTENTS,
  VOLUME_SNAPSHOTS,
  type VolumeSnapshot,
  type VolumeSnapshotContent,
  waitFor,
  waitGone,
} from '../kube/index.ts';
import { assertMadeFor, isMadeFor, makeFor, OWNER_UID } from './ownership.ts';
import type { ExposeContext, ExposerOptions } from './settings.ts';
import { step } from './step-errors.ts';

const MANAGED_BY = 'snapshot.storage.kubernetes.io/managed-by';
/** On the backup VolumeSnapshotContent, so that a restarted agent knows the remaining steps. */
const SOURCE_CONTENT = 'longshore.io/source-content';
const SOURCE_UID = 'longshore.io/source-snapshot-uid';
const RESTORE_SIZE = 'longshore.io/restore-size';
/** On objects created from a snapshot: its time, or slightly earlier. */
export const FROZEN_AT = 'longshore.io/frozen-at';
/** The same as in Velero. */
const GONE_MS = 60_000;

/** Properties of a snapshot that was taken over, for the volume created from it. */
export interface TakenSnapshot {
  /** Size that its volume needs; undefined if the driver does not report it. */
  readonly restoreSize: string | undefined;
  /** RFC 3339: time of the volume's snapshot, or shortly before; undefined if unknown. */
  readonly frozenAt: string | undefined;
}

/**
 * Hands the storage's snapshot over from the application's VolumeSnapshot to one in Velero's
 * namespace. Fields that users of the namespace may write are not trusted. The content itself must
 * name the VolumeSnapshot.
 */
export class SnapshotHandover {
  readonly #options: ExposerOptions;

  constructor(options: ExposerOptions) {
    this.#options = options;
  }

  async takeOver(
    upload: DataUpload,
    { operationTimeoutMs, signal }: ExposeContext,
  ): Promise<TakenSnapshot> {
    const { client, namespace } = this.#options;
    const { name } = upload.metadata;
    const sourceRef = sourceOf(upload);
    const content =
      assertMadeFor(
        VOLUME_SNAPSHOT_CONTENTS,
        await client.find(VOLUME_SNAPSHOT_CONTENTS, { name }, { signal }),
        upload,
      ) ?? (await this.#make(upload, sourceRef, signal));
    const { annotations = {} } = content.metadata;
    const wait = { signal, timeoutMs: operationTimeoutMs };
    const source = await step('error to retain volume snapshot content', () =>
      this.#retain(content, sourceRef),
    );
    await step('error to delete volume snapshot', async () => {
      const uid = annotations[SOURCE_UID];
      await client.delete(VOLUME_SNAPSHOTS, sourceRef, { signal, uid });
      await waitGone(client, VOLUME_SNAPSHOTS, { ...sourceRef, uid }, wait);
    });
    if (source) {
      const { name: sourceName, uid } = source.metadata;
      await step('error to delete volume snapshot content', async () => {
        await client.delete(VOLUME_SNAPSHOT_CONTENTS, { name: sourceName }, { signal, uid });
        await waitGone(client, VOLUME_SNAPSHOT_CONTENTS, { name: sourceName, uid }, wait);
      });
    }
    if (!(await client.find(VOLUME_SNAPSHOTS, { namespace, name }))) {
      const text = `VolumeSnapshot ${namespace}/${name} is gone`;
      throw new CodedError('EXPOSE_FAILED', text);
    }
    const size = annotations[RESTORE_SIZE] ?? '';
    return { restoreSize: isZero(size) ? undefined : size, frozenAt: annotations[FROZEN_AT] };
  }

  async #make(
    upload: DataUpload,
    sourceRef: ObjectRef,
    signal: AbortSignal,
  ): Promise<VolumeSnapshotContent> {
    const { client } = this.#options;
    const snapshot = await this.#waitReady(sourceRef, signal);
    const source = await step('error to get volume snapshot content', async () => {
      const found = await client.get(VOLUME_SNAPSHOT_CONTENTS, {
        name: snapshot.status?.boundVolumeSnapshotContentName ?? '',
      });
      assertContentOf(found, snapshot);
      return found;
    });
    const backup = await step('error to create backup volume snapshot', () =>
      this.#createSnapshot(upload, snapshot),
    );
    return step('error to create backup volume snapshot content', () =>
      this.#createContent(upload, backup, snapshot, source),
    );
  }

  async #waitReady(ref: ObjectRef, signal: AbortSignal): Promise<VolumeSnapshot> {
    const { client, prepareTimeoutMs } = this.#options;
    const prefix = 'error wait volume snapshot ready';
    const errors = new Set<string>();
    const look = (snapshot: VolumeSnapshot | undefined): VolumeSnapshot | undefined => {
      if (!snapshot) {
        const text = `${prefix}: there is no VolumeSnapshot ${ref.namespace ?? ''}/${ref.name}`;
        throw new CodedError('EXPOSE_FAILED', text);
      }
      const message = snapshot.status?.error?.message;
      if (message) errors.add(message);
      return snapshot.status?.readyToUse === true ? snapshot : undefined;
    };
    try {
      const options = { signal, timeoutMs: prepareTimeoutMs };
      return await waitFor(client, VOLUME_SNAPSHOTS, ref, look, options);
    } catch (cause) {
      if (!isCode(cause, 'WAIT_TIMEOUT')) throw cause;
      const text = `${prefix}: volume snapshot is not ready until timeout, errors: [${[...errors].join(', ')}]`;
      throw new CodedError('WAIT_TIMEOUT', text, { cause });
    }
  }

  /** Without the source's labels and annotations, which the namespace's users may write. */
  #createSnapshot(upload: DataUpload, source: VolumeSnapshot): Promise<VolumeSnapshot> {
    const { client, namespace } = this.#options;
    const { name, uid } = upload.metadata;
    const className = source.spec.volumeSnapshotClassName;
    const snapshot: NewObject<VolumeSnapshot> = {
      metadata: { name, namespace, annotations: { [OWNER_UID]: uid } },
      spec: {
        source: { volumeSnapshotContentName: name },
        ...(className !== undefined && { volumeSnapshotClassName: className }),
      },
    };
    return makeFor(client, VOLUME_SNAPSHOTS, snapshot, upload);
  }

  #createContent(
    upload: DataUpload,
    backup: VolumeSnapshot,
    snapshot: VolumeSnapshot,
    source: VolumeSnapshotContent,
  ): Promise<VolumeSnapshotContent> {
    const { name, namespace = '', uid, resourceVersion } = backup.metadata;
    const handle = source.status?.snapshotHandle;
    if (handle === undefined) {
      const text = `VolumeSnapshotContent ${source.metadata.name} has no snapshot handle`;
      throw new CodedError('EXPOSE_FAILED', text);
    }
    const managedBy = source.metadata.labels?.[MANAGED_BY];
    const { driver, volumeSnapshotClassName, sourceVolumeMode } = source.spec;
    const size = snapshot.status?.restoreSize;
    const frozenAt = frozenAtOf(snapshot, source);
    const content: NewObject<VolumeSnapshotContent> = {
      metadata: {
        name,
        finalizers: [CONTENT_FINALIZER],
        annotations: {
          // Written by the cluster. The annotations name the driver's secrets for the deletion.
          ...withoutProgress(source.metadata.annotations),
          [OWNER_UID]: upload.metadata.uid,
          [SOURCE_CONTENT]: source.metadata.name,
          [SOURCE_UID]: snapshot.metadata.uid,
          ...(size !== undefined && { [RESTORE_SIZE]: size }),
          ...(frozenAt !== undefined && { [FROZEN_AT]: frozenAt }),
        },
        ...(managedBy !== undefined && { labels: { [MANAGED_BY]: managedBy } }),
      },
      spec: {
        deletionPolicy: 'Delete',
        driver,
        source: { snapshotHandle: handle },
        ...(sourceVolumeMode !== undefined && { sourceVolumeMode }),
        ...(volumeSnapshotClassName !== undefined && { volumeSnapshotClassName }),
        volumeSnapshotRef: {
          apiVersion: 'snapshot.storage.k8s.io/v1',
          kind: 'VolumeSnapshot',
          name,
          namespace,
          uid,
          resourceVersion,
        },
      },
    };
    return makeFor(this.#options.client, VOLUME_SNAPSHOT_CONTENTS, content, upload);
  }

  /** After this, deleting the source keeps the storage's snapshot. Undefined if it is gone. */
  async #retain(
    backup: VolumeSnapshotContent,
    sourceRef: ObjectRef,
  ): Promise<VolumeSnapshotContent | undefined> {
    const { client } = this.#options;
    const source = await this.#sourceOf(backup, sourceRef);
    if (!source || source.spec.deletionPolicy === 'Retain') return source;
    const { name, resourceVersion } = source.metadata;
    return client.patch(
      VOLUME_SNAPSHOT_CONTENTS,
      { name },
      { metadata: { resourceVersion }, spec: { deletionPolicy: 'Retain' } },
    );
  }

  /** The content that the backup content was created from, if it still belongs to the source. */
  async #sourceOf(
    backup: VolumeSnapshotContent,
    sourceRef: ObjectRef,
  ): Promise<VolumeSnapshotContent | undefined> {
    const { annotations = {} } = backup.metadata;
    const name = annotations[SOURCE_CONTENT];
    if (name === undefined) return undefined;
    const found = await this.#options.client.find(VOLUME_SNAPSHOT_CONTENTS, { name });
    const of = found?.spec.volumeSnapshotRef;
    const isSource =
      of?.namespace === sourceRef.namespace &&
      of?.name === sourceRef.name &&
      of?.uid === annotations[SOURCE_UID];
    return isSource ? found : undefined;
  }

  /** Throws if an object cannot be deleted. Keeps objects of others. */
  async cleanUp(upload: DataUpload): Promise<void> {
    const { client, namespace } = this.#options;
    const { name } = upload.metadata;
    const ref = { namespace, name };
    const found = await client.find(VOLUME_SNAPSHOT_CONTENTS, { name });
    const content = found && isMadeFor(found, upload) ? found : undefined;
    if (content) await untilHandleTold(client, content);
    const wait = { timeoutMs: GONE_MS };
    // The backup content deletes the storage's snapshot. An admission policy does not let the agent
    // delete an application's content that would delete the snapshot too.
    const left = content && (await this.#retain(content, sourceOf(upload)));
    // Delete the VolumeSnapshot first. If it lost its content, the snapshot controller would create
    // a new snapshot for it.
    await this.dropSource(upload);
    // The controller does not delete a retained content.
    if (left) {
      const { name: leftName, uid } = left.metadata;
      await client.delete(VOLUME_SNAPSHOT_CONTENTS, { name: leftName }, { uid });
    }
    const snapshot = await client.find(VOLUME_SNAPSHOTS, ref);
    if (snapshot && isMadeFor(snapshot, upload)) {
      const { uid } = snapshot.metadata;
      await client.delete(VOLUME_SNAPSHOTS, ref, { uid });
      await waitGone(client, VOLUME_SNAPSHOTS, { ...ref, uid }, wait);
    }
    if (content) await this.#removeContent(content);
  }

  /**
   * A content bound to the backup snapshot was deleted with it. For an unbound content the snapshot
   * controller does nothing once the snapshot is gone.
   */
  async #removeContent({ metadata: { name, uid } }: VolumeSnapshotContent): Promise<void> {
    const { client } = this.#options;
    const found = await client.find(VOLUME_SNAPSHOT_CONTENTS, { name });
    if (found?.metadata.uid !== uid) return;
    const mark = { metadata: { uid, annotations: { [BEING_DELETED]: 'yes' } } };
    try {
      await client.patch(VOLUME_SNAPSHOT_CONTENTS, { name }, mark);
    } catch (error) {
      if (!isCode(error, 'KUBE_NOT_FOUND')) throw error;
    }
    await client.delete(VOLUME_SNAPSHOT_CONTENTS, { name }, { uid });
    await waitGone(client, VOLUME_SNAPSHOT_CONTENTS, { name, uid }, { timeoutMs: GONE_MS });
  }

  /** Deletes the application's snapshot, which was created only for the upload. */
  async dropSource(upload: DataUpload): Promise<void> {
    if (!upload.spec.csiSnapshot) return;
    await this.#options.client.delete(VOLUME_SNAPSHOTS, sourceOf(upload));
  }
}

/** Removes the controllers' progress marks, which do not apply to the new content. */
function withoutProgress(annotations: Readonly<Record<string, string>> = {}): object {
  const copy: Record<string, string> = { ...annotations };
  delete copy[BEING_CREATED];
  delete copy[BEING_DELETED];
  return copy;
}

/**
 * Drivers may report any time, even 1970. Times longer than this before the object are ignored. Our
 * choice.
 */
const TAKEN_BEFORE_MS = 24 * 3_600_000;

/**
 * Time of the snapshot, or slightly earlier; undefined if unknown. A snapshot is normally taken
 * after its object was created. For a group's snapshot, or a snapshot older than its object, only
 * the driver knows the time.
 */
function frozenAtOf(
  { spec, status, metadata: { creationTimestamp } }: VolumeSnapshot,
  { status: told }: VolumeSnapshotContent,
): string | undefined {
  const isOfGroup =
    status?.volumeGroupSnapshotName !== undefined || told?.volumeGroupSnapshotHandle !== undefined;
  if (!isOfGroup && spec.source.persistentVolumeClaimName !== undefined) return creationTimestamp;
  const madeMs = Date.parse(creationTimestamp);
  const toldMs = Math.floor((told?.creationTime ?? 0) / 1_000_000);
  // If a driver reports no time, its sidecar reports the time of the request.
  const isBelieved = toldMs < madeMs && toldMs > madeMs - TAKEN_BEFORE_MS;
  return isBelieved ? new Date(toldMs).toISOString() : undefined;
}

const sourceOf = ({ spec: { sourceNamespace, csiSnapshot } }: DataUpload): ObjectRef => ({
  namespace: sourceNamespace,
  name: csiSnapshot?.volumeSnapshot ?? '',
});

/** Throws `FOREIGN_OBJECT` unless the content, which users cannot write, names the snapshot. */
function assertContentOf(content: VolumeSnapshotContent, snapshot: VolumeSnapshot): void {
  const { namespace, name, uid } = snapshot.metadata;
  const of = content.spec.volumeSnapshotRef;
  if (of.namespace === namespace && of.name === name && of.uid === uid) return;
  throw new CodedError(
    'FOREIGN_OBJECT',
    `VolumeSnapshot ${namespace ?? ''}/${name} claims to be bound to VolumeSnapshotContent ` +
      `${content.metadata.name}, which is bound to another one: nothing was changed`,
  );
}

/** `0`, `0Gi`, or empty. */
const isZero = (quantity: string): boolean => /^0*[A-Za-z]*$/.test(quantity);
