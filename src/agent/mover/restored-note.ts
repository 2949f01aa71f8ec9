import { z } from 'zod';
import { CodedError, isCanceled, isCode, type Logger, messageOf } from '../../base/index.ts';
import { type KubeClient, POD_VOLUME_RESTORES, type PodVolumeRestore } from '../../kube/index.ts';
import type { WrittenVolume } from '../../mover/index.ts';
import { moverOf } from './named-mover.ts';
import { askPatiently, isRightGone } from '../rights.ts';

/**
 * On a PodVolumeRestore whose data is completely in the volume. The mover writes it before the mark
 * that lets the pod start. Only this note tells a later mover reliably that the pod may be running:
 * the pod removes the mark, and its node may report late.
 */
const RESTORED = 'longshore.io/restored';

/** Old roles lack this right. A briefly missing right returns within this. Our choice. */
const RIGHT_MS = 15_000;

const noteSchema = z.object({
  /** UID of the mover's pod. */
  by: z.string(),
  /** Boot ID of the node at that time. */
  bootId: z.string(),
  root: z.string().optional(),
  isOfClaim: z.boolean().optional(),
  lastingClaim: z.string().optional(),
});

/** The volume when its restore was complete; undefined before that. */
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
  /** Time limit for the API server's answer. */
  readonly timeoutMs: number;
  readonly signal: AbortSignal;
}

/**
 * Records that all data is in the volume, or removes the note if the volume lost its data. Does
 * nothing if the restore names no mover: Velero's agent starts no second mover. Throws `NOT_NAMED`
 * if the CR names another mover, and `NOT_NOTED` if the API server refuses.
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
    // Patch only the version just read: another mover may be named meanwhile.
    const { resourceVersion } = found.metadata;
    const metadata = { uid, resourceVersion, annotations: { [RESTORED]: note } };
    try {
      await client.patch(POD_VOLUME_RESTORES, found.metadata, { metadata }, { signal });
      return true;
    } catch (error) {
      if (isCode(error, 'KUBE_CONFLICT')) return false;
      // A wrong note would be believed, so its removal must not fail. The right to write it
      // existed.
      if (!written || !isRightGone(error)) throw error;
      if (performance.now() - startMs < RIGHT_MS) throw error;
      // Without the note a later mover is as safe as it was with those roles.
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
