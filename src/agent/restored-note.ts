import { z } from 'zod';
import { CodedError, isCanceled, isCode, type Logger, messageOf } from '../base/index.ts';
import { type KubeClient, POD_VOLUME_RESTORES, type PodVolumeRestore } from '../kube/index.ts';
import type { WrittenVolume } from '../mover/index.ts';
import { moverOf } from './named-mover.ts';
import { askPatiently, isRightGone } from './rights.ts';

/**
 * On a PodVolumeRestore whose data are all in the volume. Its mover writes it before it makes the
 * mark that lets the pod go on: nothing else tells a later mover for certain that the pod may run,
 * since the pod takes the mark away, and its node may be late to tell that it did.
 */
const RESTORED = 'longshore.io/restored';

/**
 * Roles of an earlier version have no right for it, and a right that is gone for a moment comes
 * back soon. Our choice.
 */
const RIGHT_MS = 15_000;

const noteSchema = z.object({
  /** UID of the mover's pod. */
  by: z.string(),
  /** Of the node at that time. */
  bootId: z.string(),
  root: z.string().optional(),
  isOfClaim: z.boolean().optional(),
  lastingClaim: z.string().optional(),
});

/** The volume as it was once it was restored; undefined as long as it is not. */
export function restoredOf({ metadata }: PodVolumeRestore): WrittenVolume | undefined {
  const text = metadata.annotations?.[RESTORED];
  if (text === undefined) return undefined;
  try {
    return noteSchema.parse(JSON.parse(text));
  } catch {
    return undefined;
  }
}

export interface RestoredNoteOptions {
  readonly client: KubeClient;
  readonly logger: Logger;
  /** How long the API server may take. */
  readonly timeoutMs: number;
  readonly signal: AbortSignal;
}

/**
 * Notes that all data are in the volume, or takes the note off where a volume has lost them, as
 * long as the mover that was named when it began is the one. A restore without a named mover is one
 * of Velero's agent, which starts no second one. Throws `NOT_NAMED`, and what the API server
 * refuses.
 */
export async function noteRestored(
  restore: PodVolumeRestore,
  written: WrittenVolume | undefined,
  { client, logger, timeoutMs, signal }: RestoredNoteOptions,
): Promise<void> {
  const own = moverOf(restore);
  if (!own) return;
  const { namespace, name, uid } = restore.metadata;
  const note = written ? JSON.stringify({ by: own.pod, ...written }) : null;
  const startMs = performance.now();
  const tryOnce = async (): Promise<boolean> => {
    const fieldSelector = `metadata.name=${name}`;
    const { items } = await client.listPage(POD_VOLUME_RESTORES, {
      namespace,
      fieldSelector,
      signal,
    });
    const found = items.find(({ metadata }) => metadata.uid === uid);
    if (!found || moverOf(found)?.pod !== own.pod) {
      const text = `PodVolumeRestore ${namespace ?? ''}/${name} has another data mover by now, which restores the volume: its pod was not told to go on`;
      throw new CodedError('NOT_NAMED', text);
    }
    // On top of what was read: another mover may be named meanwhile.
    const { resourceVersion } = found.metadata;
    const metadata = { uid, resourceVersion, annotations: { [RESTORED]: note } };
    try {
      await client.patch(POD_VOLUME_RESTORES, found.metadata, { metadata }, { signal });
      return true;
    } catch (error) {
      if (isCode(error, 'KUBE_CONFLICT')) return false;
      // What is noted wrongly would be believed: that right was there once.
      if (!written || !isRightGone(error)) throw error;
      if (performance.now() - startMs < RIGHT_MS) throw error;
      // What a later mover does is as safe as it was with those roles.
      const text = 'no right to note on PodVolumeRestores that their data are restored';
      logger.warn({ name, error: messageOf(error) }, text);
      return true;
    }
  };
  try {
    while (!(await askPatiently(tryOnce, { timeoutMs, signal }))) signal.throwIfAborted();
  } catch (error) {
    if (signal.aborted || isCanceled(error) || isCode(error, 'NOT_NAMED')) throw error;
    const what = written
      ? 'all data were restored, but that could not be noted'
      : 'the volume no longer has its data, but what is noted of them could not be taken';
    const text = `${what} ${written ? 'on' : 'off'} PodVolumeRestore ${namespace ?? ''}/${name}: ${messageOf(error)}`;
    throw new CodedError('NOT_NOTED', text, { cause: error });
  }
}
