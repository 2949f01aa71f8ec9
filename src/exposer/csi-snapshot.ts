import { CodedError, isCode, lookup, quantityBytes } from '../base/index.ts';
import {
  DAEMON_SETS,
  DATA_UPLOADS,
  type DataUpload,
  isBuiltInMover,
  isPassing,
  type NewObject,
  type NodeSelectorTerm,
  type PersistentVolume,
  type PersistentVolumeClaim,
  PODS,
  PVCS,
  PVS,
  STORAGE_CLASSES,
} from '../kube/index.ts';
import { affinityFor, hostingAffinity } from './affinity.ts';
import { diagnose } from './diagnosis.ts';
import { copyDriverSecrets, dropDriverSecrets } from './driver-secrets.ts';
import { type HostingClaim, removeDeadPod, waitHostingClaim } from './hosting-claim.ts';
import { hostingPod, loadTemplate, ownerReference } from './hosting-pod.ts';
import { assertLinuxVolume, attachedNodes, WindowsNodes } from './node-os.ts';
import { assertMadeFor, makeFor } from './ownership.ts';
import type { BackupPvcConfig, ExposeContext, ExposerOptions } from './settings.ts';
import { FROZEN_AT, SnapshotHandover } from './snapshot-handover.ts';
import { isBlockClaim, step } from './step-errors.ts';
import { removePodAndVolumes, settleAll, volumesOf } from './volumes.ts';

/** Velero's node-agent for Windows nodes (pkg/nodeagent/node_agent.go). */
const WINDOWS_AGENT = 'node-agent-windows';
/** VMware's fast provisioning works only on nodes without the source volume. */
const VSPHERE_FAST = 'csi.vsphere.volume/fast-provisioning';

interface ClaimParts {
  readonly size: string;
  readonly frozenAt: string | undefined;
  readonly config: BackupPvcConfig;
}

/**
 * Creates a volume from a CSI snapshot, and a pod that mounts it. The snapshot moves from the
 * application's namespace to Velero's, a PVC is created from it, and the hosting pod mounts the
 * PVC. Each step reuses existing objects, so it may be repeated after a crash at any point. Velero:
 * pkg/exposer/csi_snapshot.go.
 */
export class CsiSnapshotExposer {
  readonly #options: ExposerOptions;
  readonly #handover: SnapshotHandover;
  readonly #windows: WindowsNodes;
  /**
   * Volumes that a failed clean-up may have left, by UID of the upload. Their claims are already
   * deleted. The CR has the same list for other agents, but this agent's copy of the CR may be
   * older.
   */
  readonly #left = new Map<string, Set<string>>();

  constructor(options: ExposerOptions) {
    this.#options = options;
    this.#handover = new SnapshotHandover(options);
    this.#windows = new WindowsNodes(options.client, options.clock);
  }

  /**
   * The agent that should take the upload instead, in words; undefined if this agent should. On
   * clusters with Windows nodes, Velero's agent serves those nodes. Longshore must not claim and
   * refuse an upload that Velero's agent could do.
   */
  async waitsFor(upload: DataUpload): Promise<string | undefined> {
    if (!isBuiltInMover(upload.spec.datamover)) return undefined;
    if (!(await this.#windows.arePresent())) return undefined;
    if (!(await this.#isOfWindows(upload))) return undefined;
    const { client, namespace } = this.#options;
    const isServed = await client.find(DAEMON_SETS, { namespace, name: WINDOWS_AGENT });
    return isServed && `the DaemonSet ${WINDOWS_AGENT}, for volumes of Windows nodes`;
  }

  /** Other errors are reported after the claim. */
  async #isOfWindows(upload: DataUpload): Promise<boolean> {
    try {
      await this.#source(upload);
      return false;
    } catch (error) {
      if (isPassing(error)) throw error;
      return isCode(error, 'WINDOWS_UNSUPPORTED');
    }
  }

  /** Returns once the pod is created. Errors name the failed step and object. */
  async expose(upload: DataUpload, context: ExposeContext): Promise<void> {
    const { client, namespace } = this.#options;
    const { name } = upload.metadata;
    const { signal } = context;
    const ref = { namespace, name };
    if (assertMadeFor(PODS, await client.find(PODS, ref, { signal }), upload)) {
      context.onMake?.();
      return;
    }
    const { claim: source, volume } = await step('failed to set exposer parameters', () =>
      this.#source(upload),
    );
    const { storageClass } = upload.spec.csiSnapshot ?? { storageClass: '' };
    const topology = await step(
      `error getting volume topology for PV ${volume.metadata.name}, storage class ${storageClass}`,
      () => this.#topology(volume, storageClass),
    );
    const config = lookup(this.#options.config.backupPvc, storageClass) ?? {};
    let claim = assertMadeFor(PVCS, await client.find(PVCS, ref, { signal }), upload);
    context.onMake?.();
    if (!claim) {
      const from = upload.spec.sourceNamespace;
      const copies = { from, names: config, owner: upload, resource: DATA_UPLOADS };
      await copyDriverSecrets(this.#options, copies, context);
      const { restoreSize, frozenAt } = await this.#handover.takeOver(upload, context);
      const size = restoreSize ?? source.spec.resources?.requests?.storage ?? '';
      claim = await step('error to create backup pvc', () =>
        this.#createClaim(upload, source, { size, frozenAt, config }),
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
    await assertLinuxVolume(client, claim, volume, this.#windows);
    return { claim, volume };
  }

  /** Nodes that can use the volume. For a late-binding class, the same nodes as for the source. */
  async #topology(volume: PersistentVolume, storageClass: string): Promise<NodeSelectorTerm[]> {
    if (storageClass === '') throw new CodedError('INVALID_SPEC', 'it names no storage class');
    const { client } = this.#options;
    const found = await client.get(STORAGE_CLASSES, { name: storageClass });
    if (found.volumeBindingMode !== 'WaitForFirstConsumer') return [];
    return volume.spec.nodeAffinity?.required?.nodeSelectorTerms ?? [];
  }

  #createClaim(
    upload: DataUpload,
    source: PersistentVolumeClaim,
    { size, frozenAt, config }: ClaimParts,
  ): Promise<PersistentVolumeClaim> {
    const { client, namespace } = this.#options;
    const { name } = upload.metadata;
    const own = upload.spec.csiSnapshot?.storageClass ?? '';
    const claim: NewObject<PersistentVolumeClaim> = {
      metadata: {
        name,
        namespace,
        ownerReferences: [ownerReference(DATA_UPLOADS, upload)],
        annotations: {
          ...config.annotations,
          ...(frozenAt !== undefined && { [FROZEN_AT]: frozenAt }),
        },
      },
      spec: {
        accessModes: [accessModeOf(config)],
        storageClassName: config.storageClass || own,
        volumeMode: isBlockClaim(source) ? 'Block' : 'Filesystem',
        dataSource: { apiGroup: 'snapshot.storage.k8s.io', kind: 'VolumeSnapshot', name },
        resources: { requests: { storage: size } },
      },
    };
    return makeFor(client, PVCS, claim, upload);
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
    if (backupPvc.readWriteOncePod === true && readOnly) {
      logger.warn({}, 'readWriteOncePod is ignored: readOnly is set');
    }
    if (backupPvc.spcNoRelabeling === true && !readOnly) {
      logger.warn({}, 'spcNoRelabeling is ignored: it requires readOnly');
    }
    const isFast = backupPvc.annotations?.[VSPHERE_FAST] !== undefined;
    const excluded = isFast ? await Array.fromAsync(attachedNodes(client, volume)) : [];
    const entry = affinityFor(config.loadAffinity, claim.spec.storageClassName ?? '');
    const pod = hostingPod(
      {
        kind: 'data-upload',
        owner: upload,
        resource: DATA_UPLOADS,
        dataMover: upload.spec.datamover,
        storageLocation: upload.spec.backupStorageLocation,
        volume: { claim: claim.metadata.name, readOnly },
        isBlock: isBlockClaim(claim),
        spcNoRelabeling: backupPvc.spcNoRelabeling === true && readOnly,
        operationTimeout: upload.spec.operationTimeout,
        affinity: hostingAffinity(entry, topology, excluded),
        frozenAt: claim.metadata.annotations?.[FROZEN_AT],
        excludedBy: { storageClass: upload.spec.csiSnapshot?.storageClass ?? '' },
        volumeBytes: quantityBytes(claim.spec.resources?.requests?.storage ?? ''),
      },
      template,
      this.#options,
    );
    await makeFor(client, PODS, pod, upload);
  }

  /** Resolves when the pod's volume is available. */
  async waitUsable(upload: DataUpload, context: ExposeContext): Promise<void> {
    await waitHostingClaim(this.#options.client, this.#claimOf(upload), 'backup', context);
  }

  /** Recreates the pod after its mover died. Its volume still exists. */
  async startAgain(upload: DataUpload, context: ExposeContext): Promise<void> {
    await removeDeadPod(this.#options.client, this.#claimOf(upload), 'snapshot', context);
    await this.expose(upload, context);
  }

  #claimOf(upload: DataUpload): HostingClaim {
    const ref = { namespace: this.#options.namespace, name: upload.metadata.name };
    return { ref, owner: upload };
  }

  diagnose(upload: DataUpload): Promise<string> {
    const { client, namespace } = this.#options;
    return diagnose(client, { namespace, name: upload.metadata.name });
  }

  /** The volumes created for the upload, while the claims that name them exist. */
  volumesOf(upload: DataUpload): Promise<string[]> {
    const { client, namespace } = this.#options;
    return volumesOf(client, upload, [{ namespace, name: upload.metadata.name }]);
  }

  /**
   * Deletes all objects of the upload, and the storage's snapshot. The volume goes first: some
   * drivers refuse to delete a snapshot with dependent clones. True once everything is gone.
   * Failures are logged, and the caller retries. `volumes`: recorded earlier, in case their claims
   * are gone. `isBare`: no objects exist, so only the source snapshot is deleted.
   */
  async cleanUp(upload: DataUpload, volumes: readonly string[], isBare = false): Promise<boolean> {
    const { client, namespace, logger } = this.#options;
    if (isBare) {
      return settleAll(logger, { 'source snapshot': this.#handover.dropSource(upload) });
    }
    const { name, uid } = upload.metadata;
    const ref = { namespace, name };
    const left = this.#left.get(uid) ?? new Set();
    for (const volume of volumes) left.add(volume);
    this.#left.set(uid, left);
    const removed = await settleAll(logger, {
      'backup pod and volume': removePodAndVolumes(client, {
        owner: upload,
        resource: DATA_UPLOADS,
        pod: ref,
        claims: [ref],
        noted: left,
      }),
    });
    if (!removed) return false;
    this.#left.delete(uid);
    const { storageClass = '' } = upload.spec.csiSnapshot ?? {};
    const names = lookup(this.#options.config.backupPvc, storageClass);
    return settleAll(logger, {
      'backup snapshot': this.#handover.cleanUp(upload),
      'secrets of the driver': dropDriverSecrets(this.#options, upload, names),
    });
  }
}

const accessModeOf = ({ readOnly, readWriteOncePod }: BackupPvcConfig): string => {
  if (readOnly === true) return 'ReadOnlyMany';
  return readWriteOncePod === true ? 'ReadWriteOncePod' : 'ReadWriteOnce';
};
