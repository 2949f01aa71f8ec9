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
import { isBlockClaim, step } from './steps.ts';
import { deletePod, removePodAndVolumes, settleAll, volumesOf } from './volumes.ts';

/**
 * Its object goes once the storage has detached it, which a pod that begins to use it puts off for
 * as long as it lives.
 */
const DETACH_MS = 20_000;

/** A volume that is there, and the claim that has it. */
interface Target {
  readonly claim: PersistentVolumeClaim;
  readonly volume: PersistentVolume;
}

/**
 * Makes a volume that a PVC has already available to a data mover, beside that PVC: a second volume
 * object of the same volume in the storage, and a claim of Velero's namespace for it. The user's
 * own objects are only read, so that a crash at any point leaves them as they are. The second
 * object always says `Retain`, and never that a provisioner made it: whoever deletes it deletes no
 * data. Rejected: to take the volume away from its PVC meanwhile, as Velero's design does, which a
 * crash can leave without one.
 */
export class InPlaceExposer {
  readonly #options: ExposerOptions;

  constructor(options: ExposerOptions) {
    this.#options = options;
  }

  /**
   * Returns once the pod and its claim are made. Throws `TARGET_IN_USE`, `TARGET_UNUSABLE`, and
   * what the API server refuses.
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
   * The PVC and its volume, where nothing speaks against it. `isTouched`: a data mover may have
   * written to it. Throws `TARGET_UNUSABLE`, `TARGET_IN_USE`.
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
    // Both are there: else there was a problem.
    return { claim, volume } as Target;
  }

  /** Throws `TARGET_IN_USE` while another restore in place has the same volume. */
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
      // It goes once the storage has detached it.
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
   * One whose restore is over and forgot it, as where its CR was deleted with its finalizer. Throws
   * `TARGET_IN_USE` for any other.
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
      // Not by force, as in clean-ups: its data mover would be a second one that writes.
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
        // Of no class: nobody provisions, resizes or counts it.
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

  /** Makes the pod anew after one that died; what that one wrote is compared like the rest. */
  async startAgain(download: DataDownload, context: ExposeContext): Promise<void> {
    await deletePod(this.#options.client, this.#podRef(download), download, {
      signal: context.signal,
    });
    await this.expose(download, context);
  }

  /**
   * Why the volume must not be written any more; undefined while nothing speaks against it.
   * `isMoving`: its data mover looks for pods.
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

  /**
   * Whether the claim is there, and still has the volume that is written; undefined when it has.
   */
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

  /**
   * Volumes that were made for it, and go with it: of its cache, never the one that is restored.
   */
  volumesOf(download: DataDownload): Promise<string[]> {
    return volumesOf(this.#options.client, download, [this.#cacheRef(download)]);
  }

  /**
   * Takes away all that was made for it, and nothing else: true when nothing is left, or only waits
   * for the storage.
   */
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
    // Anybody may put a label on an object.
    const own = volumes.filter(
      (volume) =>
        isMadeFor(volume, download) && volume.metadata.name.startsWith(SECOND_VOLUME_PREFIX),
    );
    for (const { metadata, spec } of own) {
      // Whatever became of it: nothing may delete the data when its claim goes.
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
          // It goes by itself, and names a volume that nobody deletes with it.
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
   * Not as other restores call theirs: an agent of an earlier version would delete that with its
   * volume.
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
