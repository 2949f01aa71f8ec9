import { CodedError, isCode } from '../base/index.ts';
import {
  DATA_UPLOADS,
  type DataUpload,
  type NodeSelectorTerm,
  type PersistentVolume,
  type PersistentVolumeClaim,
  PODS,
  PVCS,
  PVS,
  STORAGE_CLASSES,
  VOLUME_ATTACHMENTS,
  VOLUME_SNAPSHOT_CONTENTS,
  VOLUME_SNAPSHOTS,
  type VolumeSnapshot,
  type VolumeSnapshotContent,
  waitFor,
  waitGone,
} from '../kube/index.ts';
import { affinityFor, hostingAffinity } from './affinity.ts';
import { diagnose } from './diagnosis.ts';
import { hostingPod, loadTemplate, ownerReference } from './hosting-pod.ts';
import { assertLinuxVolume } from './node-os.ts';
import type { BackupPvcConfig, ExposerOptions } from './settings.ts';
import { isBlockClaim, orExisting, step } from './steps.ts';
import { deleteClaimAndVolume, deletePod, settleAll, waitBound } from './volumes.ts';

const MANAGED_BY = 'snapshot.storage.kubernetes.io/managed-by';
/** On the backup VolumeSnapshotContent, so that an agent that comes back knows what is left to do. */
const SOURCE_CONTENT = 'longshore.io/source-content';
const RESTORE_SIZE = 'longshore.io/restore-size';
/** VMware's fast provisioning works only where the source volume is not attached. */
const VSPHERE_FAST = 'csi.vsphere.volume/fast-provisioning';

export interface ExposeContext {
  readonly operationTimeoutMs: number;
  readonly signal: AbortSignal;
}

/**
 * Makes a volume of a CSI snapshot, and a pod that has it: the source snapshot changes hands from the application's
 * namespace to ours, a PVC is made of it, and the hosting pod mounts that. Each step looks at what is there, so that
 * it may be run again after a crash at any point. Velero: pkg/exposer/csi_snapshot.go.
 */
export class CsiSnapshotExposer {
  readonly #options: ExposerOptions;

  constructor(options: ExposerOptions) {
    this.#options = options;
  }

  /** Returns once the pod is made. Throws errors whose message says what failed and on what. */
  async expose(upload: DataUpload, context: ExposeContext): Promise<void> {
    const { client, namespace } = this.#options;
    const { name } = upload.metadata;
    const { signal } = context;
    const ref = { namespace, name };
    if (await client.find(PODS, ref, { signal })) return;
    const { claim: source, volume } = await step('failed to set exposer parameters', () =>
      this.#source(upload),
    );
    const { storageClass } = upload.spec.csiSnapshot ?? { storageClass: '' };
    const topology = await step(
      `error getting volume topology for PV ${volume.metadata.name}, storage class ${storageClass}`,
      () => this.#topology(volume, storageClass),
    );
    const config = this.#options.config.backupPvc[storageClass] ?? {};
    let claim = await client.find(PVCS, ref, { signal });
    if (!claim) {
      const size = await this.#takeOver(upload, source, context);
      claim = await step('error to create backup pvc', () =>
        this.#createClaim(upload, source, size, config),
      );
    }
    await step('error to create backup pod', () =>
      this.#createPod(upload, claim, volume, topology, config),
    );
  }

  async #source(
    upload: DataUpload,
  ): Promise<{ claim: PersistentVolumeClaim; volume: PersistentVolume }> {
    const { client } = this.#options;
    const { sourceNamespace, sourcePVC } = upload.spec;
    const where = `${sourceNamespace}/${sourcePVC}`;
    const claim = await step(`failed to get PVC ${where}`, () =>
      client.get(PVCS, { namespace: sourceNamespace, name: sourcePVC }),
    );
    const name = claim.spec.volumeName ?? '';
    const volume = await step(`failed to get source PV ${name}`, () => client.get(PVS, { name }));
    await assertLinuxVolume(client, claim, volume);
    return { claim, volume };
  }

  /** Where volumes of a late-binding class can be used is where the source can. */
  async #topology(volume: PersistentVolume, storageClass: string): Promise<NodeSelectorTerm[]> {
    if (storageClass === '') throw new CodedError('INVALID_SPEC', 'no storage class is named');
    const { client } = this.#options;
    const found = await client.get(STORAGE_CLASSES, { name: storageClass });
    if (found.volumeBindingMode !== 'WaitForFirstConsumer') return [];
    return volume.spec.nodeAffinity?.required?.nodeSelectorTerms ?? [];
  }

  /** Gives the storage's snapshot to a VolumeSnapshot of ours; returns the size that a volume of it needs. */
  async #takeOver(
    upload: DataUpload,
    claim: PersistentVolumeClaim,
    { operationTimeoutMs, signal }: ExposeContext,
  ): Promise<string> {
    const { client, namespace } = this.#options;
    const { name } = upload.metadata;
    const { sourceNamespace, csiSnapshot } = upload.spec;
    const sourceRef = { namespace: sourceNamespace, name: csiSnapshot?.volumeSnapshot ?? '' };
    let content = await client.find(VOLUME_SNAPSHOT_CONTENTS, { name }, { signal });
    if (!content) {
      const snapshot = await this.#waitReady(sourceRef, signal);
      const sourceContent = await step('error to get volume snapshot content', () =>
        client.get(VOLUME_SNAPSHOT_CONTENTS, {
          name: snapshot.status?.boundVolumeSnapshotContentName ?? '',
        }),
      );
      const backup = await step('error to create backup volume snapshot', () =>
        this.#createSnapshot(name, snapshot),
      );
      content = await step('error to create backup volume snapshot content', () =>
        this.#createContent(backup, snapshot, sourceContent),
      );
    }
    const { annotations = {} } = content.metadata;
    const sourceContentName = annotations[SOURCE_CONTENT];
    if (sourceContentName !== undefined) {
      await step('error to retain volume snapshot content', () => this.#retain(sourceContentName));
    }
    const wait = { signal, timeoutMs: operationTimeoutMs };
    await step('error to delete volume snapshot', async () => {
      await client.delete(VOLUME_SNAPSHOTS, sourceRef, { signal });
      await waitGone(client, VOLUME_SNAPSHOTS, sourceRef, wait);
    });
    if (sourceContentName !== undefined) {
      await step('error to delete volume snapshot content', async () => {
        await client.delete(VOLUME_SNAPSHOT_CONTENTS, { name: sourceContentName }, { signal });
        await waitGone(client, VOLUME_SNAPSHOT_CONTENTS, { name: sourceContentName }, wait);
      });
    }
    await this.#assertSnapshot(namespace, name);
    const size = annotations[RESTORE_SIZE] ?? '';
    return isZero(size) ? (claim.spec.resources?.requests?.storage ?? '') : size;
  }

  async #assertSnapshot(namespace: string, name: string): Promise<void> {
    if (await this.#options.client.find(VOLUME_SNAPSHOTS, { namespace, name })) return;
    const text = `VolumeSnapshot ${namespace}/${name} is gone`;
    throw new CodedError('EXPOSE_FAILED', text);
  }

  async #waitReady(
    ref: { namespace: string; name: string },
    signal: AbortSignal,
  ): Promise<VolumeSnapshot> {
    const { client, prepareTimeoutMs } = this.#options;
    const prefix = 'error wait volume snapshot ready';
    const errors = new Set<string>();
    const look = (snapshot: VolumeSnapshot | undefined): VolumeSnapshot | undefined => {
      if (!snapshot) {
        const text = `${prefix}: there is no VolumeSnapshot ${ref.namespace}/${ref.name}`;
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
      throw new CodedError('EXPOSE_FAILED', text, { cause });
    }
  }

  #createSnapshot(name: string, source: VolumeSnapshot): Promise<VolumeSnapshot> {
    const { client, namespace } = this.#options;
    const { annotations } = source.metadata;
    const className = source.spec.volumeSnapshotClassName;
    return orExisting(
      () =>
        client.create(VOLUME_SNAPSHOTS, {
          metadata: { name, namespace, ...(annotations && { annotations }) },
          spec: {
            source: { volumeSnapshotContentName: name },
            ...(className !== undefined && { volumeSnapshotClassName: className }),
          },
        }),
      () => client.get(VOLUME_SNAPSHOTS, { namespace, name }),
    );
  }

  #createContent(
    backup: VolumeSnapshot,
    snapshot: VolumeSnapshot,
    source: VolumeSnapshotContent,
  ): Promise<VolumeSnapshotContent> {
    const { client } = this.#options;
    const { name, namespace = '', uid, resourceVersion } = backup.metadata;
    const handle = source.status?.snapshotHandle;
    if (handle === undefined) {
      const text = `VolumeSnapshotContent ${source.metadata.name} has no snapshot handle`;
      throw new CodedError('EXPOSE_FAILED', text);
    }
    const managedBy = source.metadata.labels?.[MANAGED_BY];
    const { driver, volumeSnapshotClassName, sourceVolumeMode } = source.spec;
    const size = snapshot.status?.restoreSize;
    return orExisting(
      () =>
        client.create(VOLUME_SNAPSHOT_CONTENTS, {
          metadata: {
            name,
            annotations: {
              ...source.metadata.annotations,
              [SOURCE_CONTENT]: source.metadata.name,
              ...(size !== undefined && { [RESTORE_SIZE]: size }),
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
        }),
      () => client.get(VOLUME_SNAPSHOT_CONTENTS, { name }),
    );
  }

  /** From here on the source's deletion leaves the storage's snapshot alone. */
  async #retain(name: string): Promise<void> {
    const { client } = this.#options;
    const content = await client.find(VOLUME_SNAPSHOT_CONTENTS, { name });
    if (!content || content.spec.deletionPolicy === 'Retain') return;
    const patch = { spec: { deletionPolicy: 'Retain' } };
    await client.patch(VOLUME_SNAPSHOT_CONTENTS, { name }, patch);
  }

  #createClaim(
    upload: DataUpload,
    source: PersistentVolumeClaim,
    size: string,
    config: BackupPvcConfig,
  ): Promise<PersistentVolumeClaim> {
    const { client, namespace } = this.#options;
    const { name } = upload.metadata;
    const own = upload.spec.csiSnapshot?.storageClass ?? '';
    return orExisting(
      () =>
        client.create(PVCS, {
          metadata: {
            name,
            namespace,
            ownerReferences: [ownerReference(DATA_UPLOADS, upload)],
            ...(config.annotations && { annotations: { ...config.annotations } }),
          },
          spec: {
            accessModes: [config.readOnly === true ? 'ReadOnlyMany' : 'ReadWriteOnce'],
            storageClassName: config.storageClass || own,
            volumeMode: isBlockClaim(source) ? 'Block' : 'Filesystem',
            dataSource: { apiGroup: 'snapshot.storage.k8s.io', kind: 'VolumeSnapshot', name },
            resources: { requests: { storage: size } },
          },
        }),
      () => client.get(PVCS, { namespace, name }),
    );
  }

  async #createPod(
    upload: DataUpload,
    claim: PersistentVolumeClaim,
    volume: PersistentVolume,
    topology: readonly NodeSelectorTerm[],
    backupPvc: BackupPvcConfig,
  ): Promise<void> {
    const { client, namespace, daemonSet, config, logger } = this.#options;
    const template = await loadTemplate(client, namespace, daemonSet);
    const readOnly = backupPvc.readOnly === true;
    if (backupPvc.spcNoRelabeling === true && !readOnly) {
      logger.warn({}, 'spcNoRelabeling is ignored: it needs readOnly');
    }
    const isFast = backupPvc.annotations?.[VSPHERE_FAST] !== undefined;
    const excluded = isFast ? await this.#attachedNodes(volume) : [];
    const entry = affinityFor(config.loadAffinity, claim.spec.storageClassName ?? '');
    const pod = hostingPod(
      {
        direction: 'backup',
        owner: upload,
        resource: DATA_UPLOADS,
        dataMover: upload.spec.datamover,
        claimName: claim.metadata.name,
        isBlock: isBlockClaim(claim),
        readOnly,
        spcNoRelabeling: backupPvc.spcNoRelabeling === true && readOnly,
        operationTimeout: upload.spec.operationTimeout,
        affinity: hostingAffinity(entry, topology, excluded),
      },
      template,
      this.#options,
    );
    await orExisting(
      () => client.create(PODS, pod),
      () => client.get(PODS, { namespace, name: upload.metadata.name }),
    );
  }

  async #attachedNodes(volume: PersistentVolume): Promise<string[]> {
    const attachments = await this.#options.client.list(VOLUME_ATTACHMENTS);
    return attachments
      .filter(({ spec }) => spec.source.persistentVolumeName === volume.metadata.name)
      .map(({ spec }) => spec.nodeName);
  }

  /** Resolves when the volume is there for the pod. */
  async waitUsable(
    upload: DataUpload,
    { operationTimeoutMs, signal }: ExposeContext,
  ): Promise<void> {
    const { client, namespace } = this.#options;
    const { name } = upload.metadata;
    await step(`error to wait backup PVC bound, ${name}`, () =>
      waitBound(client, { namespace, name }, { signal, timeoutMs: operationTimeoutMs }),
    );
  }

  /** Makes the pod anew after one that died; what it mounted is still there. */
  async startAgain(upload: DataUpload, context: ExposeContext): Promise<void> {
    const { client, namespace } = this.#options;
    const ref = { namespace, name: upload.metadata.name };
    if (!(await client.find(PVCS, ref))) {
      const text = `the volume of the snapshot is gone: there is no PVC ${namespace}/${ref.name}`;
      throw new CodedError('EXPOSE_FAILED', text);
    }
    await deletePod(client, ref, { signal: context.signal });
    await this.expose(upload, context);
  }

  diagnose(upload: DataUpload): Promise<string> {
    const { client, namespace } = this.#options;
    return diagnose(client, { namespace, name: upload.metadata.name });
  }

  /**
   * Removes all that was made for the upload, with the storage's snapshot. True when it is gone; what fails is
   * logged, and tried again by whoever calls again.
   */
  cleanUp(upload: DataUpload): Promise<boolean> {
    const { client, namespace, logger } = this.#options;
    const { name } = upload.metadata;
    const { sourceNamespace, csiSnapshot } = upload.spec;
    const ref = { namespace, name };
    const source = { namespace: sourceNamespace, name: csiSnapshot?.volumeSnapshot ?? '' };
    const volumes = async (): Promise<void> => {
      await deletePod(client, ref);
      await deleteClaimAndVolume(client, ref);
    };
    const snapshots = async (): Promise<void> => {
      const content = await client.find(VOLUME_SNAPSHOT_CONTENTS, { name });
      // While it changed hands: nobody else removes a content that is to be retained.
      const left = content?.metadata.annotations?.[SOURCE_CONTENT];
      if (left !== undefined) await client.delete(VOLUME_SNAPSHOT_CONTENTS, { name: left });
      await client.delete(VOLUME_SNAPSHOTS, ref);
      // Bound to ours it goes with it; one that was never bound has to be asked.
      if (content && !content.metadata.deletionTimestamp) {
        await client.delete(VOLUME_SNAPSHOT_CONTENTS, { name }, { uid: content.metadata.uid });
      }
      const wait = { timeoutMs: 60_000 };
      await waitGone(client, VOLUME_SNAPSHOTS, ref, wait);
      if (content) await waitGone(client, VOLUME_SNAPSHOT_CONTENTS, { name }, wait);
    };
    const given = csiSnapshot ? client.delete(VOLUME_SNAPSHOTS, source) : Promise.resolve();
    return settleAll(logger, {
      'backup pod and volume': volumes(),
      'backup snapshot': snapshots(),
      'source snapshot': given,
    });
  }
}

/** `0`, `0Gi`, or nothing. */
const isZero = (quantity: string): boolean => /^0*[A-Za-z]*$/.test(quantity);
