import { z } from 'zod';
import {
  goJson,
  isCode,
  type Logger,
  messageOf,
  type Nanoseconds,
  parseGoTime,
  rfc3339Seconds,
} from '../../base/index.ts';
import type { Bucket, SignalOptions } from '../../blob/index.ts';
import { decodeJson } from '../json-file.ts';
import {
  BACKUPS_FOLDER,
  deletionNoteKey,
  DELETION_NOTES_FOLDER,
  isArchiveName,
} from '../layout.ts';
import { signatureSchema, signingOf } from './signature.ts';

/** The newest signed backup of the location when another one was stored. */
export const previousSchema = z.looseObject({
  name: z.string(),
  uid: z.string(),
  /** The signature of the backup. See {@link signatureSchema}. */
  mac: z.string(),
  completed: z.string().optional(),
  /** When the backup may be deleted, as in its status. */
  expiration: z.string().optional(),
});
export type PreviousBackup = z.infer<typeof previousSchema>;

const noteSchema = z.looseObject({
  version: z.literal(1),
  uid: z.string(),
  deleted: z.string(),
  states: z.array(z.string()),
  signature: signatureSchema.optional(),
});

/** No Backup has this state, so the signature of a note fits no backup. */
const STATE = 'deleted';
/** Notes above the number of backups that trigger pruning. Our choice. */
const SPARE = 64;
/** A backup that names a deleted one may be stored some time after the deletion. Our choice. */
const KEPT_NS = 7n * 86_400n * 1_000_000_000n;
const LOGGED = 'the note of a deleted backup could not be stored';

/**
 * Notes of deleted backups. A backup names its predecessor, and a note explains a missing
 * predecessor. Each note has its own key, so clusters with the same bucket overwrite no note.
 * Velero allows the folder, and reads nothing in it.
 */
export class DeletionNotes {
  readonly #bucket: Bucket;
  readonly #logger: Logger;

  constructor(bucket: Bucket, logger: Logger) {
    this.#bucket = bucket;
    this.#logger = logger;
  }

  /** Returns whether the note is stored. Errors are logged, so no deletion fails for a note. */
  async put(
    name: string,
    uid: string,
    nowNs: Nanoseconds,
    options: SignalOptions,
  ): Promise<boolean> {
    const payload = { version: 1, uid, deleted: rfc3339Seconds(nowNs), states: [STATE] };
    const signature = signingOf(this.#bucket)?.signing?.sign(name, payload);
    const text = Buffer.from(`${goJson({ ...payload, ...(signature && { signature }) })}\n`);
    try {
      const key = deletionNoteKey(name, uid);
      try {
        await this.#bucket.put(key, [text], { ...options, ifAbsent: true });
      } catch (error) {
        if (!isCode(error, 'BLOB_EXISTS')) throw error;
        // A forged note must not prevent the true note.
        const state = await this.stateOf({ name, uid }, options);
        if (signature && state !== 'noted') await this.#bucket.put(key, [text], options);
      }
    } catch (error) {
      options.signal?.throwIfAborted();
      this.#logger.warn({ backup: name, error: messageOf(error) }, LOGGED);
      return false;
    }
    return true;
  }

  /** `unknown`: an unknown key signed the note. `none`: the note is missing, or is wrong. */
  async stateOf(
    { name, uid }: { readonly name: string; readonly uid: string },
    options: SignalOptions,
  ): Promise<'noted' | 'unknown' | 'none'> {
    const key = deletionNoteKey(name, uid);
    let note: z.infer<typeof noteSchema>;
    try {
      note = await decodeJson(this.#bucket.get(key, options), key, noteSchema);
    } catch (error) {
      if (isCode(error, 'BLOB_NOT_FOUND', 'DAMAGED_ARCHIVE')) return 'none';
      throw error;
    }
    const { signature, ...payload } = note;
    if (!signature) return 'none';
    const state = signingOf(this.#bucket)?.signing?.check(name, payload, signature, STATE);
    if (state === undefined || state === 'unknown') return 'unknown';
    return state === 'signed' && note.uid === uid ? 'noted' : 'none';
  }

  /**
   * Deletes unneeded notes, if there are many more than backups. `loadPrevious`: the backup that a
   * stored one names. Errors are logged.
   */
  async prune(
    loadPrevious: (name: string) => Promise<PreviousBackup | undefined>,
    {
      nowNs,
      assertAllowed,
      ...options
    }: SignalOptions & { readonly nowNs: Nanoseconds; readonly assertAllowed?: () => void },
  ): Promise<void> {
    try {
      const notes = await Array.fromAsync(this.#bucket.list(DELETION_NOTES_FOLDER, options));
      if (notes.length <= SPARE) return;
      const names = await Array.fromAsync(this.#bucket.listFolders(BACKUPS_FOLDER, options));
      if (notes.length <= names.length + SPARE) return;
      const needed = new Set<string>();
      for (const name of names.filter(isArchiveName)) {
        const previous = await loadPrevious(name);
        if (previous) needed.add(deletionNoteKey(previous.name, previous.uid));
      }
      for (const key of notes) {
        if (needed.has(key) || !(await this.#isOld(key, nowNs, options))) continue;
        assertAllowed?.();
        await this.#bucket.delete(key, options);
      }
    } catch (error) {
      options.signal?.throwIfAborted();
      if (isCode(error, 'LEADERSHIP_LOST')) throw error;
      this.#logger.debug(
        { error: messageOf(error) },
        'old notes of deleted backups stay in the bucket',
      );
    }
  }

  async #isOld(key: string, nowNs: Nanoseconds, options: SignalOptions): Promise<boolean> {
    try {
      const { deleted } = await decodeJson(this.#bucket.get(key, options), key, noteSchema);
      return parseGoTime(deleted) + KEPT_NS < nowNs;
    } catch (error) {
      return isCode(error, 'DAMAGED_ARCHIVE', 'BAD_TIME');
    }
  }
}
