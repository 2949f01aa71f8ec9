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
import { type HostingClaim, removeDeadPod, waitHostingClaim } from './hosting-claim.ts';
import { hostingPod, loadTemplate, ownerReference } from './hosting-pod.ts';
import { assertLinuxVolume, attachedNodes, WindowsNodes } from './node-os.ts';
import { assertMadeFor, makeFor } from './ownership.ts';
import type { BackupPvcConfig, ExposeContext, ExposerOptions } from './settings.ts';
import { FROZEN_AT, SnapshotHandover } from './snapshot-handover.ts';
import { isBlockClaim, step } from './steps.ts';
import { removePodAndVolumes, settleAll, volumesOf } from './volumes.ts';

/** Velero's node-agent of Windows nodes (pkg/nodeagent/node_agent.go). */
const WINDOWS_AGENT = 'node-agent-windows';
/** VMware's fast provisioning works only where the source volume is not attached. */
const VSPHERE_FAST = 'csi.vsphere.volume/fast-provisioning';

interface ClaimParts {
  readonly size: string;
  readonly frozenAt: string | undefined;
  readonly config: BackupPvcConfig;
}

/**
 * Makes a volume of a CSI snapshot, and a pod that has it: the source snapshot changes hands from
 * the application's namespace to ours, a PVC is made of it, and the hosting pod mounts that. Each
 * step looks at what is there, so that it may be run again after a crash at any point. Velero:
 * pkg/exposer/csi_snapshot.go.
 */
export class CsiSnapshotExposer {
  readonly #options: ExposerOptions;
  readonly #handover: SnapshotHandover;
  readonly #windows: WindowsNodes;
  /**
   * Volumes that may be left of a clean-up that failed, by UID of the upload: their claims, which
   * named them, are gone. They are noted on the CR too, for other agents; what this one sees of the
   * CR may be older.
   */
  readonly #left = new Map<string, Set<string>>();

  constructor(options: ExposerOptions) {
    this.#options = options;
    this.#handover = new SnapshotHandover(options);
    this.#windows = new WindowsNodes(options.client, options.clock);
  }

  /**
   * Who takes it in our place, in words; undefined where nobody does. On clusters with Windows
   * nodes Velero's agent runs there beside us, and what we claimed and refused it could have backed
   * up.
   */
  async waitsFor(upload: DataUpload): Promise<string | undefined> {
    if (!isBuiltInMover(upload.spec.datamover)) return undefined;
    if (!(await this.#windows.arePresent())) return undefined;
    if (!(await this.#isOfWindows(upload))) return undefined;
    const { client, namespace } = this.#options;
    const isServed = await client.find(DAEMON_SETS, { namespace, name: WINDOWS_AGENT });
    return isServed && `the DaemonSet ${WINDOWS_AGENT}, for volumes of Windows nodes`;
  }

  /** Anything else that is wrong is told once it is claimed. */
  async #isOfWindows(upload: DataUpload): Promise<boolean> {
    try {
      await this.#source(upload);
      return false;
    } catch (error) {
      if (isPassing(error)) throw error;
      return isCode(error, 'WINDOWS_UNSUPPORTED');
    }
  }

  /** Returns once the pod is made. Throws errors whose message says what failed and on what. */
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

  /** Where volumes of a late-binding class can be used is where the source can. */
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
        accessModes: [config.readOnly === true ? 'ReadOnlyMany' : 'ReadWriteOnce'],
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

  /** Resolves when the volume is there for the pod. */
  async waitUsable(upload: DataUpload, context: ExposeContext): Promise<void> {
    await waitHostingClaim(this.#options.client, this.#claimOf(upload), 'backup', context);
  }

  /** Makes the pod anew after one that died; what it mounted is still there. */
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

  /** The volumes that were made for the upload, while the claims that name them are there. */
  volumesOf(upload: DataUpload): Promise<string[]> {
    const { client, namespace } = this.#options;
    return volumesOf(client, upload, [{ namespace, name: upload.metadata.name }]);
  }

  /**
   * Removes all that was made for the upload, with the storage's snapshot: the volume before the
   * snapshot that it was made of, which drivers with dependent clones refuse to delete. True when
   * it is gone; what fails is logged, and tried again by whoever calls again. `volumes`: noted
   * before, in case their claim is gone by now. `isBare`: nothing was made for it, and only the
   * snapshot that it was to take over goes.
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
    return settleAll(logger, { 'backup snapshot': this.#handover.cleanUp(upload) });
  }
}
