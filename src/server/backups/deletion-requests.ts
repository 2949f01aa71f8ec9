import { isCode, untilAborted } from '../../base/index.ts';
import {
  type Backup,
  BACKUP_UID,
  BACKUPS,
  Cache,
  Controller,
  DELETE_BACKUP_REQUESTS,
  hasHadRun,
  isAnswered,
  keyOf,
  type KubeObject,
  refOf,
  type Result,
} from '../../kube/index.ts';
import type { Lead } from '../leading-controller.ts';
import type { RunsView } from '../runs/watched-runs.ts';
import { phaseOf } from './backup-kind.ts';

/** A DeleteBackupRequest, as `velero backup delete` creates it. */
interface DeletionRequest extends KubeObject {
  readonly spec?: { readonly backupName?: string };
  readonly status?: { readonly phase?: string };
}

export interface DeletionRequestsOptions {
  readonly lead: Lead;
  readonly backups: RunsView<Backup>;
  /** Whether other controllers of this server handle all requests. */
  readonly isElsewhere?: boolean;
}

const WORKERS = 2;

/**
 * Handles requests to delete running backups, which Velero refuses. Deletes the Backup, and with it
 * everything that its run began. Requests for finished backups are left to another server.
 */
export class DeletionRequests {
  readonly #options: DeletionRequestsOptions;
  readonly #requests: Cache<KubeObject>;
  readonly #controller: Controller;

  constructor(options: DeletionRequestsOptions) {
    const { client, logger, namespace } = options.lead;
    this.#options = options;
    const scope = { namespace };
    this.#requests = new Cache({ client, logger, scope, resource: DELETE_BACKUP_REQUESTS });
    this.#controller = new Controller({
      name: 'backup-deletion',
      workers: WORKERS,
      logger,
      reconcile: (key) => this.#reconcile(key),
    });
  }

  async run(): Promise<void> {
    const { isElsewhere } = this.#options;
    const { signal } = this.#options.lead;
    if (isElsewhere === true) return;
    const cache = this.#requests.run(signal);
    await untilAborted(signal, this.#requests.synced);
    this.#requests.onChange((after) => {
      if (after) this.#controller.queue.add(keyOf(after.metadata));
    });
    for (const { metadata } of this.#requests.list()) this.#controller.queue.add(keyOf(metadata));
    await Promise.all([cache, this.#controller.run(signal)]);
  }

  async #reconcile(key: string): Promise<Result | undefined> {
    const { backups } = this.#options;
    const { client, logger, namespace, assertLeading, signal } = this.#options.lead;
    const request = this.#requests.get(refOf(key)) as DeletionRequest | undefined;
    const name = request?.spec?.backupName ?? '';
    if (!request || name === '') return undefined;
    const backup = backups.get({ namespace, name });
    if (!backup || hasHadRun(phaseOf(backup))) return undefined;
    if (!isFor(request, backup)) return undefined;
    assertLeading();
    logger.info({ backup: name }, 'a backup is deleted while it is made');
    const { uid } = backup.metadata;
    await client.delete(BACKUPS, { namespace, name }, { uid, signal });
    try {
      await client.delete(DELETE_BACKUP_REQUESTS, request.metadata, { signal });
    } catch (error) {
      if (!isCode(error, 'KUBE_NOT_FOUND')) throw error;
    }
    return undefined;
  }
}

/** Whether the request is unanswered and is for this Backup, not for an earlier one of the name. */
const isFor = (request: DeletionRequest, backup: Backup): boolean =>
  !isAnswered(request.status?.phase) && isAbout(request, backup);

/** A request without a UID is for the Backup that existed at its creation. */
export function isAbout(request: KubeObject, { metadata }: Backup): boolean {
  const uid = request.metadata.labels?.[BACKUP_UID] ?? '';
  if (uid !== '') return uid === metadata.uid;
  const [asked = NaN, made = NaN] = [request.metadata, metadata].map(({ creationTimestamp }) =>
    Date.parse(creationTimestamp ?? ''),
  );
  // A missing time is no reason to refuse.
  return !(asked < made);
}
