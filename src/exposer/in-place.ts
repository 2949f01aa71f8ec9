import { CodedError, isCode, quantityBytes } from '../base/index.ts';
import {
  DATA_DOWNLOADS,
  type DataDownload,
  inPlaceOrderOf,
  type NewObject,
  type PersistentVolume,
  type PersistentVolumeClaim,
  PODS,
  PVCS,
  PVS,
  SECOND_VOLUME_PREFIX,
  waitGone,
  type WaitOptions,
} from '../kube/index.ts';
import { affinityFor, hostingAffinity } from './affinity.ts';
import { createCacheClaim } from './cache-claim.ts';
import { type ClaimRef, describeUsers, usersOfClaim } from './claim-users.ts';
import { diagnose } from './diagnosis.ts';
import { waitHostingClaim } from './hosting-claim.ts';
import { hostingPod, loadTemplate, ownerReference } from './hosting-pod.ts';
import {
  claimProblem,
  inUseMeanwhile,
  targetProblem,
  targetRef,
  unusable,
} from './in-place-target.ts';
import { assertMadeFor, isMadeFor, makeFor, OWNER_UID } from './ownership.ts';
import {
  assertHarmless,
  OWNER_LABEL,
  OWNER_NAME,
  secondVolume,
  sourceOf,
  volumeNameFor,
} from './second-volume.ts';
import type { ExposeContext, ExposerOptions } from './settings.ts';
import { isBlockClaim, step } from './step-errors.ts';
import { deletePod, removePodAndVolumes, settleAll, volumesOf } from './volumes.ts';

/**
 * Wait for the second object of a volume to vanish after the storage has detached it. A pod that
 * uses the volume can delay that for as long as it runs.
 */
const DETACH_MS = 20_000;

/** An existing volume and its claim. */
interface Target {
  readonly claim: PersistentVolumeClaim;
  readonly volume: PersistentVolume;
}

/**
 * Makes the volume of an existing PVC available to a data mover, beside that PVC. Creates a second
 * volume object for the same volume in the storage, and a claim for it in Velero's namespace. The
 * user's objects are only read, so a crash at any point leaves them unchanged. The second object
 * always has the policy `Retain` and no provisioner, so its deletion deletes no data. Rejected:
 * take the volume away from its PVC meanwhile, as in Velero's design. A crash could leave the PVC
 * without its volume.
 */
export class InPlaceExposer {
  readonly #options: ExposerOptions;

  constructor(options: ExposerOptions) {
    this.#options = options;
  }

  /**
   * Returns once the pod and its claim are created. Throws `TARGET_IN_USE`, `TARGET_UNUSABLE` and
   * errors of the API server.
   */
  async expose(download: DataDownload, context: ExposeContext): Promise<void> {
    const { client } = this.#options;
    const { signal } = context;
    const [pod, claim] = await Promise.all([
      client.find(PODS, this.#podRef(download), { signal }),
      client.find(PVCS, this.#claimRef(download), { signal }),
    ]);
    assertMadeFor(PODS, pod, download);
    assertMadeFor(PVCS, claim, download);
    if (pod ?? claim) context.onMake?.();
    if (pod && claim) return;
    if (download.spec.nodeOS === 'windows') throw unusable('Windows volumes are not supported');
    const isTouched = claim !== undefined;
    const target = await step('cannot restore in place', () =>
      this.#loadTarget(download, isTouched, signal),
    );
    context.onMake?.();
    await step('error to create a second object of the volume', () =>
      this.#makeVolume(download, target, context),
    );
    const wanted = this.#claimFor(download, target);
    const made = await step('error to create restore pvc', () =>
      makeFor(client, PVCS, wanted, download),
    );
    if (made.spec.volumeName !== wanted.spec.volumeName) throw unusable(otherVolume(download));
    if (pod) return;
    const cacheClaim = await step('error to create cache pvc', () =>
      createCacheClaim(this.#options, DATA_DOWNLOADS, download, undefined),
    );
    await step('error to create restore pod', () => this.#makePod(download, target, cacheClaim));
  }

  /**
   * The PVC and its volume, after all checks. `isTouched`: a data mover may have written to the
   * volume. Throws `TARGET_UNUSABLE`, `TARGET_IN_USE`.
   */
  async #loadTarget(
    download: DataDownload,
    isTouched: boolean,
    signal: AbortSignal,
  ): Promise<Target> {
    const { client } = this.#options;
    const claim = await client.find(PVCS, targetRef(download), { signal });
    const volumeName = claim?.spec.volumeName ?? '';
    const volume =
      volumeName === '' ? undefined : await client.find(PVS, { name: volumeName }, { signal });
    const problem = targetProblem(download, claim, volume);
    if (problem !== undefined) throw unusable(problem);
    const users = await usersOfClaim(client, targetRef(download), signal);
    if (users.length > 0) {
      const who = describeUsers(targetRef(download), users);
      const text = `${who}: stop what uses it, and restore it again`;
      throw new CodedError('TARGET_IN_USE', isTouched ? inUseMeanwhile(who) : text);
    }
    // Both exist: otherwise there was a problem.
    return { claim, volume } as Target;
  }

  /** Throws `TARGET_IN_USE` while another restore in place uses the same volume. */
  async #makeVolume(
    download: DataDownload,
    { volume }: Target,
    { operationTimeoutMs, signal }: ExposeContext,
  ): Promise<void> {
    const { client } = this.#options;
    const wanted = secondVolume(download, volume, this.#claimRef(download));
    const { name = '' } = wanted.metadata;
    const found = await client.find(PVS, { name }, { signal });
    if (found && !isMadeFor(found, download)) {
      if (found.metadata.deletionTimestamp === undefined) {
        await this.#dropLeft(found, { timeoutMs: operationTimeoutMs, signal });
      }
      // The object vanishes once the storage has detached the volume.
      const { uid } = found.metadata;
      await step('the storage has not detached the volume since an earlier restore in place', () =>
        waitGone(client, PVS, { name, uid }, { timeoutMs: operationTimeoutMs, signal }),
      );
    }
    const made = await makeFor(client, PVS, wanted, download);
    const isSame = JSON.stringify(sourceOf(made)) === JSON.stringify(sourceOf(volume));
    if (!isSame) throw unusable(`PersistentVolume ${name} is of another volume by now`);
    assertHarmless(made);
  }

  /**
   * Deletes the second object of an earlier restore that left it behind, for example a CR deleted
   * together with its finalizer. Throws `TARGET_IN_USE` if that restore is still running.
   */
  async #dropLeft(
    { metadata: { name, annotations = {} } }: PersistentVolume,
    wait: WaitOptions,
  ): Promise<void> {
    const { client, namespace } = this.#options;
    const [owner = '', uid = ''] = [annotations[OWNER_NAME], annotations[OWNER_UID]];
    const found = owner === '' ? undefined : await client.find(DATA_DOWNLOADS, { namespace, name: owner }); // prettier-ignore
    const isThere = found?.metadata.uid === uid && (found.metadata.finalizers ?? []).length > 0;
    if (uid === '' || isThere) {
      const text = `another restore in place of the same volume is under way (DataDownload ${namespace}/${owner}, PersistentVolume ${name}): wait until it has ended`;
      throw new CodedError('TARGET_IN_USE', text);
    }
    const left = { metadata: { namespace, name: owner, uid } } as DataDownload;
    const pod = await client.find(PODS, this.#podRef(left));
    if (pod && isMadeFor(pod, left)) {
      // No forced deletion as in clean-ups: the old data mover might still write beside the new
      // one.
      const ref = { ...this.#podRef(left), uid: pod.metadata.uid };
      await client.delete(PODS, ref, { uid: ref.uid, gracePeriodSeconds: 1 });
      await step('the data mover of an earlier restore in place has not ended', () =>
        waitGone(client, PODS, ref, wait),
      );
    }
    await this.cleanUp(left);
  }

  #claimFor(download: DataDownload, { volume }: Target): NewObject<PersistentVolumeClaim> {
    const { accessModes, volumeMode, capacity } = volume.spec as PersistentVolumeClaim['spec'] &
      PersistentVolume['spec'];
    return {
      metadata: {
        ...this.#claimRef(download),
        ownerReferences: [ownerReference(DATA_DOWNLOADS, download)],
      },
      spec: {
        ...(accessModes && { accessModes }),
        ...(volumeMode !== undefined && { volumeMode }),
        // Without a storage class nothing provisions, resizes or counts the claim.
        storageClassName: '',
        volumeName: volumeNameFor(volume),
        resources: { requests: { storage: capacity?.storage ?? '1' } },
      },
    };
  }

  async #makePod(
    download: DataDownload,
    { claim, volume }: Target,
    cacheClaim: string | undefined,
  ): Promise<void> {
    const { client, namespace, daemonSet, config } = this.#options;
    const template = await loadTemplate(client, namespace, daemonSet);
    const entry = affinityFor(config.loadAffinity, claim.spec.storageClassName ?? '');
    const pod = hostingPod(
      {
        kind: 'data-download',
        owner: download,
        resource: DATA_DOWNLOADS,
        dataMover: download.spec.datamover,
        storageLocation: download.spec.backupStorageLocation,
        volume: {
          claim: this.#claimRef(download).name,
          readOnly: inPlaceOrderOf(download)?.dryRun === true,
        },
        isInPlace: true,
        isBlock: isBlockClaim(claim),
        operationTimeout: download.spec.operationTimeout,
        affinity: hostingAffinity(entry, volume.spec.nodeAffinity?.required?.nodeSelectorTerms),
        cacheClaim,
        volumeBytes: quantityBytes(volume.spec.capacity?.storage ?? ''),
      },
      template,
      this.#options,
    );
    await makeFor(client, PODS, pod, download);
  }

  async waitUsable(download: DataDownload, context: ExposeContext): Promise<void> {
    const claim = { ref: this.#claimRef(download), owner: download };
    await waitHostingClaim(this.#options.client, claim, 'restore', context);
  }

  /** Recreates the pod after its mover died. Data already written is compared like the rest. */
  async startAgain(download: DataDownload, context: ExposeContext): Promise<void> {
    await deletePod(this.#options.client, this.#podRef(download), download, {
      signal: context.signal,
    });
    await this.expose(download, context);
  }

  /**
   * Why the volume must not be written any more; undefined if no reason is known. `isMoving`: the
   * data mover itself checks for pods that use the volume.
   */
  async lostReason(
    download: DataDownload,
    { signal, isMoving }: { signal: AbortSignal; isMoving: boolean },
  ): Promise<string | undefined> {
    const { client } = this.#options;
    const ref = targetRef(download);
    const problem = await this.targetProblem(download, signal);
    if (problem !== undefined) return `${problem}: its volume cannot be restored any more`;
    const users = isMoving ? [] : await usersOfClaim(client, ref, signal);
    return users.length === 0 ? undefined : inUseMeanwhile(describeUsers(ref, users));
  }

  /** Why the claim is missing or has another volume; undefined if it has the volume. */
  async targetProblem(download: DataDownload, signal: AbortSignal): Promise<string | undefined> {
    const { client } = this.#options;
    const [claim, own] = await Promise.all([
      client.find(PVCS, targetRef(download), { signal }),
      client.find(PVCS, this.#claimRef(download), { signal }),
    ]);
    const problem = claimProblem(download, claim);
    const name = claim?.spec.volumeName ?? '';
    if (problem !== undefined || !own || !isMadeFor(own, download)) return problem;
    const volume = name === '' ? undefined : await client.find(PVS, { name }, { signal });
    const isSame = volume !== undefined && volumeNameFor(volume) === own.spec.volumeName;
    return targetProblem(download, claim, volume) ?? (isSame ? undefined : otherVolume(download));
  }

  diagnose(download: DataDownload): Promise<string> {
    const claims = [this.#claimRef(download).name, this.#cacheRef(download).name];
    return diagnose(this.#options.client, this.#podRef(download), claims);
  }

  /** Volumes to delete with the CR: the cache's only, never the restored one. */
  volumesOf(download: DataDownload): Promise<string[]> {
    return volumesOf(this.#options.client, download, [this.#cacheRef(download)]);
  }

  /** Deletes the CR's objects only. True once they are gone, or only wait for the storage. */
  async cleanUp(
    download: DataDownload,
    volumes: readonly string[] = [],
    isBare = false,
  ): Promise<boolean> {
    if (isBare) return true;
    const { client, logger } = this.#options;
    const pod = this.#podRef(download);
    const claims = [this.#cacheRef(download)];
    const removal = { owner: download, pod, claims, noted: new Set(volumes) };
    const isClean = await settleAll(logger, {
      'restore pod and cache': removePodAndVolumes(client, removal),
    });
    if (!isClean) return false;
    return settleAll(logger, { 'second object of the volume': this.#dropSecond(download) });
  }

  async #dropSecond(download: DataDownload): Promise<void> {
    const { client } = this.#options;
    const ref = this.#claimRef(download);
    const labelSelector = `${OWNER_LABEL}=${download.metadata.uid}`;
    const volumes = await client.list(PVS, { labelSelector });
    // Users may put the label on any object.
    const own = volumes.filter(
      (volume) =>
        isMadeFor(volume, download) && volume.metadata.name.startsWith(SECOND_VOLUME_PREFIX),
    );
    for (const { metadata, spec } of own) {
      // Before the claim is deleted, ensure that the policy does not delete the data.
      if (spec.persistentVolumeReclaimPolicy === 'Retain') continue;
      const patch = { spec: { persistentVolumeReclaimPolicy: 'Retain' } };
      await client.patch(PVS, { name: metadata.name }, patch).catch(unlessGone);
    }
    const claim = await client.find(PVCS, ref);
    if (claim && isMadeFor(claim, download)) {
      const { uid } = claim.metadata;
      await client.delete(PVCS, ref, { uid });
      await waitGone(client, PVCS, { ...ref, uid }, { timeoutMs: 3 * DETACH_MS });
    }
    for (const { metadata } of own) {
      const { name, uid } = metadata;
      await client.delete(PVS, { name }, { uid }).catch(unlessGone);
      await waitGone(client, PVS, { name, uid }, { timeoutMs: DETACH_MS }).catch(
        (error: unknown) => {
          // The object vanishes later by itself, and its volume's data stays.
          if (!isCode(error, 'WAIT_TIMEOUT')) throw error;
        },
      );
    }
  }

  #cacheRef({ metadata }: DataDownload): ClaimRef {
    return { namespace: this.#options.namespace, name: `${metadata.name}-cache` };
  }

  #podRef({ metadata }: DataDownload): ClaimRef {
    return { namespace: this.#options.namespace, name: metadata.name };
  }

  /**
   * Not the name of other restores' claims: an agent of an earlier version would delete that claim
   * together with its volume.
   */
  #claimRef({ metadata }: DataDownload): ClaimRef {
    return { namespace: this.#options.namespace, name: `${metadata.name}-in-place` };
  }
}

const otherVolume = ({ spec: { targetVolume } }: DataDownload): string =>
  `PVC ${targetVolume.namespace}/${targetVolume.pvc} has another volume than when the restore began`;

function unlessGone(error: unknown): void {
  if (!isCode(error, 'KUBE_NOT_FOUND')) throw error;
}
