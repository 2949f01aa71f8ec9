import { CodedError, isCode, lookup, messageOf, quantityBytes } from '../base/index.ts';
import {
  DATA_DOWNLOADS,
  type DataDownload,
  type Metadata,
  type NewObject,
  type ObjectRef,
  type PersistentVolume,
  type PersistentVolumeClaim,
  PODS,
  PVCS,
  PVS,
  STORAGE_CLASSES,
  waitFor,
  waitGone,
} from '../kube/index.ts';
import { createCacheClaim, SELECTED_NODE } from './cache-claim.ts';
import { affinityFor, hostingAffinity } from './affinity.ts';
import { diagnose } from './diagnosis.ts';
import {
  assertUsableWithoutCopies,
  copyDriverSecrets,
  dropDriverSecrets,
} from './driver-secrets.ts';
import { type HostingClaim, removeDeadPod, waitHostingClaim } from './hosting-claim.ts';
import { hostingPod, loadTemplate, ownerReference } from './hosting-pod.ts';
import { assertMadeFor, isMadeFor, makeFor } from './ownership.ts';
import type { ExposeContext, ExposerOptions } from './settings.ts';
import { isBlockClaim, step } from './step-errors.ts';
import {
  deletePod,
  removePodAndVolumes,
  setReclaimPolicy,
  settleAll,
  volumesOf,
  waitBound,
} from './volumes.ts';

const BIND_COMPLETED = 'pv.kubernetes.io/bind-completed';
const BOUND_BY_CONTROLLER = 'pv.kubernetes.io/bound-by-controller';
/** On the DataDownload while its volume is handed over, so that a restarted agent can continue. */
const RESTORED_VOLUME = 'longshore.io/restored-volume';
const RECLAIM_POLICY = 'longshore.io/reclaim-policy';
/**
 * On a volume that is bound to its target but does not have its own reclaim policy yet: the UID of
 * the DataDownload. The admission policy lets the agent change no other volumes outside its
 * namespace (manifests/base/admission-policy.yaml).
 */
const HANDED_OVER = 'longshore.io/handed-over';
/** Domain of the PVC annotations that VMware's driver reads. Its provisioner has another domain. */
const VSPHERE_DOMAIN = 'csi.vsphere.volume';

/**
 * Creates a volume for a waiting PVC, and a pod that mounts it. Afterwards the PVC gets the volume.
 * Each step reuses existing objects, so it may be repeated after a crash at any point. Velero:
 * pkg/exposer/generic_restore.go.
 */
export class GenericRestoreExposer {
  readonly #options: ExposerOptions;

  constructor(options: ExposerOptions) {
    this.#options = options;
  }

  /** Returns once the pod and its claims are created. */
  async expose(download: DataDownload, context: ExposeContext): Promise<void> {
    const { client, namespace } = this.#options;
    const { signal } = context;
    const { name } = download.metadata;
    const ref = { namespace, name };
    const [pod, claim] = await Promise.all([
      client.find(PODS, ref, { signal }),
      client.find(PVCS, ref, { signal }),
    ]);
    assertMadeFor(PODS, pod, download);
    assertMadeFor(PVCS, claim, download);
    if (pod ?? claim) context.onMake?.();
    if (pod && claim) return;
    if (download.spec.nodeOS === 'windows') {
      const text =
        "Windows volumes are not supported: let Velero's own data mover restore this one";
      throw new CodedError('WINDOWS_UNSUPPORTED', text);
    }
    const target = await this.#waitConsumed(download, signal);
    const { namespace: where = '', name: targetName } = target.claim.metadata;
    if (target.claim.spec.volumeName) {
      const text = `Target PVC ${where}/${targetName} has already been bound, abort`;
      throw new CodedError('EXPOSE_FAILED', text);
    }
    context.onMake?.();
    if (!claim) {
      const { namespace: from } = download.spec.targetVolume;
      const names = this.#options.config.restoreSecrets;
      const copies = { from, names, owner: download, resource: DATA_DOWNLOADS };
      await copyDriverSecrets(this.#options, copies, context);
    }
    const cacheClaim = await step('error to create cache pvc', () =>
      createCacheClaim(this.#options, DATA_DOWNLOADS, download, target.node),
    );
    if (!pod) {
      await step('error to create restore pod', () =>
        this.#createPod(download, target.claim, target.node, cacheClaim),
      );
    }
    if (!claim) {
      await step('error to create restore pvc', () =>
        this.#createClaim(download, target.claim, target.node),
      );
    }
  }

  /** The target PVC, once it may get a volume. Late-binding classes first choose a node. */
  async #waitConsumed(
    { spec: { targetVolume } }: DataDownload,
    signal: AbortSignal,
  ): Promise<{ claim: PersistentVolumeClaim; node: string | undefined }> {
    const { client, config, prepareTimeoutMs } = this.#options;
    const ref = { namespace: targetVolume.namespace, name: targetVolume.pvc };
    return step(`error to wait target PVC consumed, ${ref.namespace}/${ref.name}`, async () => {
      const claim = await client.get(PVCS, ref, { signal });
      const className = claim.spec.storageClassName ?? '';
      if (config.ignoreDelayBinding || className === '') return { claim, node: undefined };
      const storageClass = await client.get(STORAGE_CLASSES, { name: className }, { signal });
      if (storageClass.volumeBindingMode !== 'WaitForFirstConsumer') {
        return { claim, node: undefined };
      }
      const look = (
        now: PersistentVolumeClaim | undefined,
      ): { claim: PersistentVolumeClaim; node: string } | undefined => {
        if (!now) throw new CodedError('EXPOSE_FAILED', 'the PVC is gone');
        const node = now.metadata.annotations?.[SELECTED_NODE];
        return node === undefined ? undefined : { claim: now, node };
      };
      return waitFor(client, PVCS, ref, look, { signal, timeoutMs: prepareTimeoutMs });
    });
  }

  async #createPod(
    download: DataDownload,
    target: PersistentVolumeClaim,
    node: string | undefined,
    cacheClaim: string | undefined,
  ): Promise<void> {
    const { client, namespace, daemonSet, config } = this.#options;
    const { name } = download.metadata;
    const template = await loadTemplate(client, namespace, daemonSet);
    const entry =
      node === undefined
        ? affinityFor(config.loadAffinity, target.spec.storageClassName ?? '')
        : undefined;
    const pod = hostingPod(
      {
        kind: 'data-download',
        owner: download,
        resource: DATA_DOWNLOADS,
        dataMover: download.spec.datamover,
        storageLocation: download.spec.backupStorageLocation,
        volume: { claim: name },
        isBlock: isBlockClaim(target),
        operationTimeout: download.spec.operationTimeout,
        affinity: hostingAffinity(entry),
        selectedNode: node,
        cacheClaim,
        volumeBytes:
          download.spec.snapshotSize ??
          quantityBytes(target.spec.resources?.requests?.storage ?? ''),
      },
      template,
      this.#options,
    );
    await makeFor(client, PODS, pod, download);
  }

  /**
   * Copies only the annotations that the driver reads. Users of the namespace write labels and
   * annotations, and controllers would act on them in Velero's namespace.
   */
  async #driverAnnotations({ metadata, spec }: PersistentVolumeClaim): Promise<object> {
    const name = spec.storageClassName ?? '';
    const { annotations = {} } = metadata;
    if (name === '' || Object.keys(annotations).length === 0) return {};
    const found = await this.#options.client.find(STORAGE_CLASSES, { name });
    const domains = [VSPHERE_DOMAIN, ...(found ? [found.provisioner] : [])];
    return Object.fromEntries(
      Object.entries(annotations).filter(([key]) => domains.includes(key.split('/')[0] ?? '')),
    );
  }

  /** Like the target, without fields that would stop a provisioner. */
  async #createClaim(
    download: DataDownload,
    target: PersistentVolumeClaim,
    node: string | undefined,
  ): Promise<void> {
    const { client, namespace } = this.#options;
    const { name } = download.metadata;
    const { accessModes, storageClassName, volumeMode, resources } = target.spec;
    const metadata: Partial<Metadata> = {
      name,
      namespace,
      ownerReferences: [ownerReference(DATA_DOWNLOADS, download)],
      annotations: {
        ...(await this.#driverAnnotations(target)),
        ...(node !== undefined && { [SELECTED_NODE]: node }),
      },
    };
    const claim: NewObject<PersistentVolumeClaim> = {
      metadata,
      spec: {
        ...(accessModes && { accessModes }),
        ...(storageClassName !== undefined && { storageClassName }),
        ...(volumeMode !== undefined && { volumeMode }),
        ...(resources && { resources }),
      },
    };
    await makeFor(client, PVCS, claim, download);
  }

  async waitUsable(download: DataDownload, context: ExposeContext): Promise<void> {
    await waitHostingClaim(this.#options.client, this.#claimOf(download), 'restore', context);
  }

  /** Recreates the pod after its mover died. The volume keeps the data restored so far. */
  async startAgain(download: DataDownload, context: ExposeContext): Promise<void> {
    await removeDeadPod(this.#options.client, this.#claimOf(download), 'restore', context);
    await this.expose(download, context);
  }

  #claimOf(download: DataDownload): HostingClaim {
    const ref = { namespace: this.#options.namespace, name: download.metadata.name };
    return { ref, owner: download };
  }

  /** True once the handover of the volume has begun. */
  isRebinding(download: DataDownload): boolean {
    return download.metadata.annotations?.[RESTORED_VOLUME] !== undefined;
  }

  /**
   * Gives the restored volume to the target PVC. Throws an error that names the failed step. Then
   * the volume still belongs to the restore PVC, or belongs to no PVC and the clean-up deletes it.
   */
  async rebind(download: DataDownload, context: ExposeContext): Promise<void> {
    const { client, namespace } = this.#options;
    const { operationTimeoutMs, signal } = context;
    const ref = { namespace, name: download.metadata.name };
    const { targetVolume } = download.spec;
    const targetRef = { namespace: targetVolume.namespace, name: targetVolume.pvc };
    const wait = { signal, timeoutMs: operationTimeoutMs };
    const target = await step('error to get target PVC', () => client.get(PVCS, targetRef));
    const { volume, policy } = await this.#markVolume(download, context);
    await step('error to retain the restored volume', () =>
      setReclaimPolicy(client, volume, 'Retain'),
    );
    await step('error to delete restore pod', () => deletePod(client, ref, download, wait));
    await step('error to delete restore PVC', async () => {
      const claim = await client.find(PVCS, ref, { signal });
      if (!claim || !isMadeFor(claim, download)) return;
      const { uid } = claim.metadata;
      await client.delete(PVCS, ref, { signal, uid });
      await waitGone(client, PVCS, { ...ref, uid }, wait);
    });
    // Bind the volume first. If a claim names a volume of another claim, its controller retries
    // only seconds later.
    await step('error to rebind the restored volume', () =>
      this.#bindVolume(download, target, volume),
    );
    await step('error to rebind target PVC', () => this.#bindClaim(target, volume));
    await step(`error to wait for PV ${volume} to be bound`, () =>
      waitFor(client, PVS, { name: volume }, (now) => boundTo(now, target), wait),
    );
    await this.#release(volume, policy);
  }

  /** Removes the mark from the target's volume and sets its final reclaim policy. */
  async #release(name: string, policy: string): Promise<void> {
    const { client, logger } = this.#options;
    const found = await client.find(PVS, { name });
    if (!found) return;
    const isMarked = found.metadata.annotations?.[HANDED_OVER] !== undefined;
    if (!isMarked && found.spec.persistentVolumeReclaimPolicy === policy) return;
    const patch = {
      metadata: { annotations: { [HANDED_OVER]: null } },
      spec: { persistentVolumeReclaimPolicy: policy },
    };
    try {
      await client.patch(PVS, { name }, patch);
    } catch (error) {
      if (isCode(error, 'KUBE_NOT_FOUND')) return;
      // An agent of an earlier version handed the volume over without the mark, so the admission
      // policy refuses the change.
      if (isMarked || !isCode(error, 'KUBE_INVALID')) throw error;
      const text = `PersistentVolume ${name} keeps the reclaim policy Retain; set ${policy} if you want it`;
      logger.warn({ volume: name, error: messageOf(error) }, text);
    }
  }

  /** Records the volume and its policy on the CR, because the claim is deleted on the way. */
  async #markVolume(
    download: DataDownload,
    context: ExposeContext,
  ): Promise<{ volume: string; policy: string }> {
    const { operationTimeoutMs, signal } = context;
    const { client, namespace } = this.#options;
    const ref = { namespace, name: download.metadata.name };
    const { annotations = {}, resourceVersion } = (await client.get(DATA_DOWNLOADS, ref)).metadata;
    const known = annotations[RESTORED_VOLUME];
    if (known !== undefined)
      return { volume: known, policy: annotations[RECLAIM_POLICY] ?? 'Delete' };
    const volume = await step('error to wait restore PVC bound', () =>
      waitBound(client, ref, download, { signal, timeoutMs: operationTimeoutMs }),
    );
    const found = await client.get(PVS, { name: volume });
    assertUsableWithoutCopies(found, namespace, this.#options.config.restoreSecrets);
    const policy = found.spec.persistentVolumeReclaimPolicy ?? 'Delete';
    try {
      // If another agent has recorded them meanwhile, the policy on the volume may have changed
      // since.
      await client.patch(DATA_DOWNLOADS, ref, {
        metadata: {
          annotations: { [RESTORED_VOLUME]: volume, [RECLAIM_POLICY]: policy },
          resourceVersion,
        },
      });
    } catch (error) {
      if (!isCode(error, 'KUBE_CONFLICT')) throw error;
      return this.#markVolume(download, context);
    }
    return { volume, policy };
  }

  async #bindClaim(target: PersistentVolumeClaim, volume: string): Promise<void> {
    if (target.spec.volumeName === volume) return;
    const annotations = { [BIND_COMPLETED]: null, [BOUND_BY_CONTROLLER]: null };
    await this.#options.client.patch(PVCS, target.metadata, {
      metadata: { annotations },
      spec: { volumeName: volume },
    });
  }

  /** Adds the labels that the target's selector requires. */
  async #bindVolume(
    { metadata: { uid } }: DataDownload,
    target: PersistentVolumeClaim,
    name: string,
  ): Promise<void> {
    const { client } = this.#options;
    const now = await client.get(PVS, { name });
    const { namespace = '', name: targetName } = target.metadata;
    if (isClaimOf(now, { namespace, name: targetName })) return;
    const wanted = target.spec.selector?.matchLabels ?? {};
    const labels = Object.fromEntries(
      Object.entries(wanted).filter(([key]) => lookup(now.metadata.labels, key) === undefined),
    );
    const noClaim = { apiVersion: null, kind: null, uid: null, resourceVersion: null };
    await client.patch(
      PVS,
      { name },
      {
        // Patch only the version just read. Otherwise a new binding could be removed, and the claim
        // would be lost.
        metadata: {
          resourceVersion: now.metadata.resourceVersion,
          labels,
          annotations: { [BOUND_BY_CONTROLLER]: null, [HANDED_OVER]: uid },
        },
        spec: { claimRef: { ...noClaim, namespace, name: targetName } },
      },
    );
  }

  diagnose(download: DataDownload): Promise<string> {
    const { client, namespace } = this.#options;
    const { name } = download.metadata;
    return diagnose(client, { namespace, name }, [name, `${name}-cache`]);
  }

  /** The volumes created for the download, while the claims that name them exist. */
  volumesOf(download: DataDownload): Promise<string[]> {
    return volumesOf(this.#options.client, download, this.#claimsOf(download));
  }

  #claimsOf({ metadata: { name } }: DataDownload): ObjectRef[] {
    const { namespace } = this.#options;
    return [name, `${name}-cache`].map((claim) => ({ namespace, name: claim }));
  }

  /** Deletes all objects, and a volume that was being handed over. The target stays. */
  async cleanUp(
    download: DataDownload,
    volumes: readonly string[],
    isBare = false,
  ): Promise<boolean> {
    if (isBare) return true;
    const { client, namespace, logger } = this.#options;
    const { name } = download.metadata;
    const ref = { namespace, name };
    const isClean = await settleAll(logger, {
      'restore pod and volumes': removePodAndVolumes(client, {
        owner: download,
        resource: DATA_DOWNLOADS,
        pod: ref,
        claims: this.#claimsOf(download),
        noted: new Set(volumes),
      }),
    });
    const stray = download.metadata.annotations?.[RESTORED_VOLUME];
    // After Completed the volume belongs to its users, and may have other settings.
    const isKept = stray === undefined || download.status?.phase === 'Completed';
    const isDropped =
      isKept || (await settleAll(logger, { 'restored volume': this.#dropStray(download, stray) }));
    // The driver may need its Secrets until the volumes are deleted.
    if (!isClean || !isDropped) return false;
    return settleAll(logger, {
      'secrets of the driver': dropDriverSecrets(
        this.#options,
        download,
        this.#options.config.restoreSecrets,
      ),
    });
  }

  /** Deletes a restored volume without a claim, which would otherwise cost money forever. */
  async #dropStray(download: DataDownload, name: string): Promise<void> {
    const { client } = this.#options;
    const volume = await client.find(PVS, { name });
    if (!volume) return;
    const { targetVolume } = download.spec;
    const targetRef = { namespace: targetVolume.namespace, name: targetVolume.pvc };
    if (isClaimOf(volume, targetRef)) {
      // The volume belongs to the target. Only its reclaim policy may have to be restored.
      const policy = download.metadata.annotations?.[RECLAIM_POLICY];
      if (policy !== undefined) await this.#release(name, policy);
      return;
    }
    if (volume.status?.phase === 'Bound') return;
    await setReclaimPolicy(client, name, 'Delete');
    try {
      await client.delete(PVS, { name }, { uid: volume.metadata.uid });
    } catch (error) {
      if (!isCode(error, 'KUBE_NOT_FOUND')) throw error;
    }
  }
}

const isClaimOf = (
  { spec }: PersistentVolume,
  { namespace, name }: { namespace: string; name: string },
): boolean => spec.claimRef?.namespace === namespace && spec.claimRef.name === name;

/**
 * True once the volume is bound to the claim. The phase alone may be out of date, so compare the
 * UID. Throws if the volume belongs to another claim.
 */
function boundTo(
  volume: PersistentVolume | undefined,
  { metadata }: PersistentVolumeClaim,
): true | undefined {
  if (!volume) throw new CodedError('REBIND_FAILED', 'the restored volume is gone');
  const { claimRef } = volume.spec;
  if (volume.status?.phase !== 'Bound' || claimRef?.uid === undefined) return undefined;
  if (claimRef.uid === metadata.uid) return true;
  const by = `${claimRef?.namespace ?? ''}/${claimRef?.name ?? ''}`;
  throw new CodedError('REBIND_FAILED', `pv has been bound by unexpected pvc ${by}`);
}
