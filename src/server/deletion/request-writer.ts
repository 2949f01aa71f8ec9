import { isCode, messageOf, redactAndCut } from '../../base/index.ts';
import {
  type Backup,
  BACKUP_NAME,
  BACKUP_UID,
  DELETE_BACKUP_REQUESTS,
  isPassing,
  type Resource,
  validLabel,
} from '../../kube/index.ts';
import type { Lead } from '../leading-controller.ts';
import type { DeletionRequest } from './deletion-request.ts';

/** Minimum time between two notes. Each note wakes every watcher of the request. */
const WORD_MS = 30_000;

/** Writes the reason for a wait into a request, at a limited rate. */
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

  /** Resolves when no write is pending. The answer must be written after the last note. */
  told(): Promise<void> {
    return this.#told;
  }
}

export const REQUESTS = DELETE_BACKUP_REQUESTS as Resource<DeletionRequest>;

/**
 * Writes into deletion requests during one period of leadership. All methods throw errors of the
 * API server, and `LEADERSHIP_LOST`.
 */
export class RequestWriter {
  readonly #lead: Lead;
  /** Notes of requests that wait, by the UID of the request. */
  readonly #notes = new Map<string, WaitingNote>();
  /** UIDs of answered requests. The cache may not show the answer yet. */
  readonly #answered = new Set<string>();

  constructor(lead: Lead) {
    this.#lead = lead;
  }

  hasAnswered({ metadata }: DeletionRequest): boolean {
    return this.#answered.has(metadata.uid);
  }

  /** For a request that was removed. */
  forget({ metadata }: DeletionRequest): void {
    this.#answered.delete(metadata.uid);
    this.#notes.delete(metadata.uid);
  }

  /** Marks the request as in progress and records the UID of its Backup. */
  async claim(request: DeletionRequest, { metadata: { name, uid } }: Backup): Promise<void> {
    const { [BACKUP_NAME]: label = '', [BACKUP_UID]: noted } = request.metadata.labels ?? {};
    if (request.status?.phase === 'InProgress' && noted === uid && label !== '') return;
    const named = label === '' ? validLabel(name) : label;
    await this.#patch(request, {
      metadata: { labels: { [BACKUP_NAME]: named, [BACKUP_UID]: uid } },
      status: { phase: 'InProgress' },
    });
  }

  /** Writes why the deletion does not begin. */
  async refuse(request: DeletionRequest, error: string): Promise<void> {
    const fields = { deleteBackupRequest: request.metadata.name, error };
    await this.#notes.get(request.metadata.uid)?.told();
    await this.fail(request, [error]);
    this.#lead.logger.error(fields, 'a backup is not deleted');
  }

  /** Writes why the backup still exists. */
  async fail(request: DeletionRequest, errors: readonly string[]): Promise<void> {
    await this.#patch(request, { status: { phase: 'Processed', errors } });
    this.#answered.add(request.metadata.uid);
  }

  /** Writes that the backup is deleted. The caller then removes the request. */
  async succeed(request: DeletionRequest): Promise<void> {
    await this.#patch(request, { status: { phase: 'Processed', errors: null } });
  }

  async remove({ namespace, name, uid }: DeletionRequest['metadata']): Promise<void> {
    const { client, assertLeading, signal } = this.#lead;
    assertLeading();
    await client.delete(REQUESTS, { namespace, name }, { uid, signal });
  }

  /** Notes the reason for a wait. Does not block, and skips notes that come too soon. */
  tell(request: DeletionRequest, text: string): void {
    const { uid } = request.metadata;
    const note = this.#notes.get(uid) ?? this.newNote(request);
    this.#notes.set(uid, note);
    note.tell(text);
  }

  /** Notes an error that is retried without limit, so that users see it. Skips transient errors. */
  tellFailure(request: DeletionRequest, error: unknown): void {
    if (isPassing(error) || isCode(error, 'LEADERSHIP_LOST')) return;
    this.tell(request, `${redactAndCut(messageOf(error))}; it is tried again`);
  }

  /** For a caller that awaits `told()` itself. */
  newNote(request: DeletionRequest): WaitingNote {
    const fields = { deleteBackupRequest: request.metadata.name };
    return new WaitingNote(
      (text) => this.#patch(request, { status: { errors: [text] } }),
      (error) => {
        const about = { ...fields, error: messageOf(error) };
        this.#lead.logger.debug(about, 'what a deletion waits for could not be written down');
      },
    );
  }

  async #patch(
    { metadata }: DeletionRequest,
    patch: { metadata?: object; status: object },
  ): Promise<void> {
    const { client, assertLeading, signal } = this.#lead;
    assertLeading();
    const body = { ...patch, metadata: { ...patch.metadata, uid: metadata.uid } };
    try {
      await client.patch(REQUESTS, metadata, body, { signal });
    } catch (error) {
      // A user removed the request, so no answer is needed.
      if (!isCode(error, 'KUBE_NOT_FOUND')) throw error;
    }
  }
}
