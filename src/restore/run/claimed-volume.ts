import { setTimeout as sleep } from 'node:timers/promises';
import { isCode, mapLimited } from '../../base/index.ts';
import {
  askedFor,
  isSameJson,
  type KubeClient,
  type KubeObject,
  type ObjectReference,
  type Patience,
  type PersistentVolume,
  type PersistentVolumeClaim,
  PVCS,
  PVS,
  type Restore,
  targetNamespace,
} from '../../kube/index.ts';
import type { BackedUpItems, DoneItem, ItemFile } from './contract.ts';
import type { ItemNotes } from './existing-objects.ts';
import { readItem } from './item-file.ts';

/**
 * Returns a loader of the volume object that a PVC had in the backup. Undefined for other kinds.
 * The loader throws the problems of its file.
 */
export function volumeReaderOf(
  { groupResource }: ItemFile,
  given: KubeObject,
  items: BackedUpItems,
): (() => Promise<KubeObject | undefined>) | undefined {
  if (groupResource !== 'persistentvolumeclaims') return undefined;
  return async () => {
    const { volumeName: name = '' } = (given as PersistentVolumeClaim).spec;
    const folder = { groupResource: 'persistentvolumes', version: undefined, namespace: '' };
    const file = { ...folder, isPreferred: true, name };
    if (name === '' || !items.has(file)) return undefined;
    const bytes = await items.load(file);
    return bytes && readItem(file, bytes);
  };
}

/** A claim that names its volume, with the known facts about both. */
export interface NamedVolume {
  /** The claim in the cluster. */
  readonly claim: PersistentVolumeClaim;
  readonly given: PersistentVolumeClaim;
  /** Undefined if this restore has not restored the PersistentVolume. The backup may lack it. */
  readonly standing: Pick<DoneItem, 'exists'> | undefined;
  /** The PersistentVolume in the backup. */
  readonly volumeFromBackup: (() => Promise<KubeObject | undefined>) | undefined;
  /** A plugin operation fills the claim, and may also create the volume. */
  readonly hasOperation: boolean;
}

export interface ClaimedVolumeOptions {
  readonly client: Pick<KubeClient, 'find' | 'patch'>;
  readonly patience: Patience;
  readonly restore: Restore;
  readonly notes: ItemNotes;
  readonly signal: AbortSignal;
}

/** A claim whose volume is not released yet. */
export interface WaitingVolume {
  /** Checks again. Returns true if the volume is settled; the last look always settles it. */
  readonly look: (how: { readonly isLast: boolean }) => Promise<boolean>;
}

type VolumeStep =
  | { readonly kind: 'fine' | 'freed' }
  | { readonly kind: 'waiting' | 'stuck'; readonly why: string };

/** The volume controller releases a volume within seconds of the deletion. Our choice. */
const RELEASE_MS = 15_000;
/** Concurrent lookups of volumes. Our choice. */
const LOOKS_AT_ONCE = 8;
/** Fields that all PersistentVolumes have. The other fields identify the volume in its storage. */
const COMMON_FIELDS = new Set([
  ...['accessModes', 'capacity', 'claimRef', 'mountOptions', 'nodeAffinity', 'storageClassName'],
  ...['persistentVolumeReclaimPolicy', 'volumeMode', 'volumeAttributesClassName'],
]);

/**
 * Lets a restored claim bind to the volume that it names. If the volume was released from this
 * claim and kept (`Retain`), its reference to the deleted claim is removed. If the claim can never
 * bind, an error says why. Returns a volume that is not released yet, for {@link UnsettledClaims}.
 */
export async function settleNamedVolume(
  named: NamedVolume,
  options: ClaimedVolumeOptions,
): Promise<WaitingVolume | undefined> {
  const { volumeName: name = '' } = named.claim.spec;
  if (name === '') return undefined;
  const look: WaitingVolume['look'] = async ({ isLast }) => {
    const asked = askedFor('patch', PVS);
    const step = await options.patience.ask(asked, () => stepOf(name, named, options));
    if (step.kind === 'waiting' && !isLast) return false;
    sayStep(step, name, named, options.notes);
    return true;
  };
  return (await look({ isLast: false })) ? undefined : { look };
}

function sayStep(step: VolumeStep, name: string, named: NamedVolume, notes: ItemNotes): void {
  const { metadata } = named.claim;
  const claim = `PersistentVolumeClaim ${metadata.namespace ?? ''}/${metadata.name}`;
  if (step.kind === 'waiting' || step.kind === 'stuck') {
    notes.error(`${claim} cannot bind: PersistentVolume ${name} ${step.why}`);
  } else if (step.kind === 'freed') {
    const text = `PersistentVolume ${name} was released from the deleted claim: ${claim} binds to it, with the data that it holds now`;
    if (named.standing) notes.info(text);
    else notes.warn(`${text}. The restore did not come to the PersistentVolume itself`);
  }
}

interface UnsettledClaim extends WaitingVolume {
  /** Called when the volume is settled. Never two calls at once. */
  readonly over: () => Promise<void>;
}

interface SettleOptions {
  readonly signal: AbortSignal;
  readonly resourceTimeoutMs: number;
  readonly pollMs: number;
}

/** More claims are settled before the next item. Our choice: 10 MB of claims. */
const UNSETTLED_MAX = 1000;

/** Claims in the cluster whose volumes are not released yet. */
export class UnsettledClaims {
  readonly #options: SettleOptions;
  #all: UnsettledClaim[] = [];

  constructor(options: SettleOptions) {
    this.#options = options;
  }

  async add(claim: UnsettledClaim): Promise<void> {
    this.#all.push(claim);
    if (this.#all.length >= UNSETTLED_MAX) await this.settle();
  }

  /** Waits for the volumes of all claims. Throws the reason of the signal, and errors of `over`. */
  async settle(): Promise<void> {
    const all = this.#all;
    this.#all = [];
    await settleTogether(all, this.#options);
  }
}

/** Waits for all volumes at once. With hundreds of claims, single waits would add up. */
async function settleTogether(
  all: readonly UnsettledClaim[],
  { signal, resourceTimeoutMs, pollMs }: SettleOptions,
): Promise<void> {
  const untilMs = performance.now() + Math.min(RELEASE_MS, resourceTimeoutMs);
  let waiting = all;
  while (waiting.length > 0) {
    const isLast = performance.now() >= untilMs;
    const settled = await mapLimited(waiting, LOOKS_AT_ONCE, (claim) => {
      signal.throwIfAborted();
      return claim.look({ isLast });
    });
    for (const claim of waiting.filter((_, i) => settled[i])) await claim.over();
    waiting = waiting.filter((_, i) => !settled[i]);
    if (waiting.length > 0) await sleep(pollMs, undefined, { signal });
  }
}

/** Looks at the volume once, and frees it if that is right. */
async function stepOf(
  name: string,
  { claim, given, standing, volumeFromBackup, hasOperation }: NamedVolume,
  { client, restore, signal }: ClaimedVolumeOptions,
): Promise<VolumeStep> {
  const pv = await client.find(PVS, { name }, { signal, isExact: true });
  if (!pv) {
    if (hasOperation) return { kind: 'fine' };
    const why =
      'does not exist. Restore it as well, or delete the claim and create one without volumeName';
    return { kind: 'stuck', why };
  }
  const { phase = '' } = pv.status ?? {};
  const { claimRef, persistentVolumeReclaimPolicy: policy = '' } = pv.spec;
  if (pv.metadata.deletionTimestamp !== undefined) {
    const why = 'is being deleted. Delete the claim, and restore again when the volume is gone';
    return { kind: 'stuck', why };
  }
  if (!claimRef?.name || claimRef.uid === claim.metadata.uid) return { kind: 'fine' };
  const { namespace = '', name: claimName } = claim.metadata;
  const isNamed = claimRef.namespace === namespace && claimRef.name === claimName;
  if (!isNamed && !(await isOfGoneOriginal(claimRef, given, { client, restore, signal }))) {
    const other = `${claimRef.namespace ?? ''}/${claimRef.name}`;
    const why = `belongs to the claim ${other} (${phase}). Restore from a backup that has the data of the volume, or delete that claim and restore again`;
    return { kind: 'stuck', why };
  }
  if ((claimRef.uid ?? '') === '' && isNamed) return { kind: 'fine' };
  // The old claim is deleted. The restored claim has the same name and another UID.
  if (phase === 'Failed') {
    const why = `is Failed (${pv.status?.message ?? 'no message'}). Repair it, remove spec.claimRef.uid from it, and the claim binds`;
    return { kind: 'stuck', why };
  }
  if (phase !== 'Released') {
    const why = `is ${phase}, and refers to a claim that is gone. When it is Released, remove spec.claimRef.uid from it, and the claim binds`;
    return { kind: 'waiting', why };
  }
  if (policy !== 'Retain') {
    const why = `is released, and its reclaim policy is ${policy}. Delete the claim, and restore again when the volume is gone`;
    return { kind: 'stuck', why };
  }
  const byHand = 'To use it as it is, remove spec.claimRef.uid from it';
  if (standing?.exists === false) {
    const why = `was not restored, and may hold other data than the backup. ${byHand}`;
    return { kind: 'stuck', why };
  }
  const stored = (await volumeFromBackup?.()) as PersistentVolume | undefined;
  if (stored && !isSameJson(sourceOf(stored), sourceOf(pv))) {
    const why = `is another volume of the storage than in the backup. ${byHand}`;
    return { kind: 'stuck', why };
  }
  const { resourceVersion } = pv.metadata;
  const freed = { uid: null, resourceVersion: null, ...(!isNamed && { namespace }) };
  const change = { metadata: { resourceVersion }, spec: { claimRef: freed } };
  try {
    await client.patch(PVS, { name }, change, { signal });
    return { kind: 'freed' };
  } catch (error) {
    if (!isCode(error, 'KUBE_CONFLICT')) throw error;
    return { kind: 'waiting', why: `was changed at the same moment. ${byHand}` };
  }
}

/** Whether a volume refers to the backed-up claim, which is now in another namespace. */
async function isOfGoneOriginal(
  { namespace = '', name = '', uid = '' }: ObjectReference,
  { metadata: original }: PersistentVolumeClaim,
  { client, restore, signal }: Pick<ClaimedVolumeOptions, 'client' | 'restore' | 'signal'>,
): Promise<boolean> {
  const { namespace: from = '' } = original;
  if (namespace !== from || name !== original.name || uid !== original.uid) return false;
  if (targetNamespace(from, restore) === from) return false;
  return (await client.find(PVCS, { namespace, name }, { signal, isExact: true })) === undefined;
}

/** The attributes of a CSI volume may change. Its handle does not. */
function sourceOf({ spec }: PersistentVolume): unknown {
  const { csi } = spec;
  if (csi) return { driver: csi.driver, volumeHandle: csi.volumeHandle };
  return Object.fromEntries(Object.entries(spec).filter(([key]) => !COMMON_FIELDS.has(key)));
}
