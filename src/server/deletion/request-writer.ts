import { isCode, type Logger, messageOf, redactAndCut } from '../../base/index.ts';
import {
  type Backup,
  BACKUP_NAME,
  BACKUP_UID,
  DELETE_BACKUP_REQUESTS,
  isPassing,
  type KubeClient,
  type Resource,
  validLabel,
} from '../../kube/index.ts';
import type { DeletionRequest } from './refusal.ts';

/** Between two words. Each wakes whoever watches the request. */
const WORD_MS = 30_000;

/** What a deletion waits for, written into its request now and then. */
class WaitingNote {
  readonly #write: (text: string) => Promise<void>;
  readonly #failed: (error: unknown) => void;
  #toldMs = -Infinity;
  #told = Promise.resolve();

  constructor(write: (text: string) => Promise<void>, failed: (error: unknown) => void) {
    this.#write = write;
    this.#failed = failed;
  }

  tell(text: string): void {
    if (performance.now() - this.#toldMs < WORD_MS) return;
    this.#toldMs = performance.now();
    this.#told = this.#told.then(() => this.#write(text)).catch(this.#failed);
  }

  /** Resolves when nothing of it is on its way: whoever writes the answer wants the last word. */
  told(): Promise<void> {
    return this.#told;
  }
}

export const REQUESTS = DELETE_BACKUP_REQUESTS as Resource<DeletionRequest>;

export interface RequestWriterOptions {
  readonly client: KubeClient;
  readonly logger: Logger;
  readonly assertLeading: () => void;
  readonly signal: AbortSignal;
}

/**
 * What this server writes into requests for one time that it leads. All methods throw what the API
 * server answers, and `LEADERSHIP_LOST`.
 */
export class RequestWriter {
  readonly #options: RequestWriterOptions;
  /** By UIDs of requests that cannot be begun with. */
  readonly #notes = new Map<string, WaitingNote>();
  /** UIDs of requests that have their answer, which the cache may not have yet. */
  readonly #answered = new Set<string>();

  constructor(options: RequestWriterOptions) {
    this.#options = options;
  }

  hasAnswered({ metadata }: DeletionRequest): boolean {
    return this.#answered.has(metadata.uid);
  }

  /** Of one that is gone. */
  forget({ metadata }: DeletionRequest): void {
    this.#answered.delete(metadata.uid);
    this.#notes.delete(metadata.uid);
  }

  /** Notes on it that it is being worked on, and for which Backup. */
  async claim(request: DeletionRequest, { metadata: { name, uid } }: Backup): Promise<void> {
    const { [BACKUP_NAME]: label = '', [BACKUP_UID]: noted } = request.metadata.labels ?? {};
    if (request.status?.phase === 'InProgress' && noted === uid && label !== '') return;
    const named = label === '' ? validLabel(name) : label;
    await this.#patch(request, {
      metadata: { labels: { [BACKUP_NAME]: named, [BACKUP_UID]: uid } },
      status: { phase: 'InProgress' },
    });
  }

  /** Says why it is not begun with. */
  async refuse(request: DeletionRequest, error: string): Promise<void> {
    const fields = { deleteBackupRequest: request.metadata.name, error };
    await this.#notes.get(request.metadata.uid)?.told();
    await this.fail(request, [error]);
    this.#options.logger.error(fields, 'a backup is not deleted');
  }

  /** Says why the backup is not gone. */
  async fail(request: DeletionRequest, errors: readonly string[]): Promise<void> {
    await this.#patch(request, { status: { phase: 'Processed', errors } });
    this.#answered.add(request.metadata.uid);
  }

  /** Says that the backup is gone. Its removal follows. */
  async succeed(request: DeletionRequest): Promise<void> {
    await this.#patch(request, { status: { phase: 'Processed', errors: null } });
  }

  async remove({ namespace, name, uid }: DeletionRequest['metadata']): Promise<void> {
    const { client, assertLeading, signal } = this.#options;
    assertLeading();
    await client.delete(REQUESTS, { namespace, name }, { uid, signal });
  }

  /** What it waits for, now and then, beside the caller. */
  tell(request: DeletionRequest, text: string): void {
    const { uid } = request.metadata;
    const note = this.#notes.get(uid) ?? this.newNote(request);
    this.#notes.set(uid, note);
    note.tell(text);
  }

  /** It is tried again for as long as it takes, which whoever waits for it is to see. */
  tellFailure(request: DeletionRequest, error: unknown): void {
    if (isPassing(error) || isCode(error, 'LEADERSHIP_LOST')) return;
    this.tell(request, `${redactAndCut(messageOf(error))}; it is tried again`);
  }

  /** For a caller that waits itself for the note's last word. */
  newNote(request: DeletionRequest): WaitingNote {
    const fields = { deleteBackupRequest: request.metadata.name };
    return new WaitingNote(
      (text) => this.#patch(request, { status: { errors: [text] } }),
      (error) => {
        const about = { ...fields, error: messageOf(error) };
        this.#options.logger.debug(about, 'what a deletion waits for could not be written down');
      },
    );
  }

  async #patch(
    { metadata }: DeletionRequest,
    patch: { metadata?: object; status: object },
  ): Promise<void> {
    const { client, assertLeading, signal } = this.#options;
    assertLeading();
    const body = { ...patch, metadata: { ...patch.metadata, uid: metadata.uid } };
    try {
      await client.patch(REQUESTS, metadata, body, { signal });
    } catch (error) {
      // Somebody has removed it: nobody waits for an answer.
      if (!isCode(error, 'KUBE_NOT_FOUND')) throw error;
    }
  }
}
