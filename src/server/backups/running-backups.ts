import { CodedError, isCode, messageOf } from '../../base/index.ts';
import {
  type Backup,
  CONFIG_MAPS,
  type ConfigMap,
  isPassing,
  NOT_IN_BACKUPS,
  UNDER_WAY_PREFIX,
} from '../../kube/index.ts';
import type { Lead } from '../leading-controller.ts';
import { isJournalSealed, journalAnnotations } from '../runs/journal-tries.ts';

export type UnderWayOptions = Pick<Lead, 'client' | 'logger' | 'namespace' | 'assertLeading'>;

/** The Backup of a note. */
export interface NotedBackup {
  readonly name: string;
  readonly uid: string;
}

/** Name of the ConfigMap that exists while a Backup is under way or being ended. */
export const noteName = (uid: string): string => `${UNDER_WAY_PREFIX}${uid}`;
const LABEL = 'longshore.io/under-way';
const LABELS = {
  [LABEL]: 'backup',
  // A restored note would name a backup that no server is making.
  ...NOT_IN_BACKUPS,
};
const FIELD = 'backup.json';
/** A ConfigMap may have 1 MiB, and etcd allows little more. Our choice. */
const NOTE_BYTES_MAX = 512 << 10;
/** Number of server errors until backups run without notes, in case a webhook fails. Our choice. */
const FAILED_MAX = 5;
const ALLOW = 'let the ServiceAccount of this server get, list, create and delete ConfigMaps here';

/**
 * Notes of backups under way, a ConfigMap for each. With them, a later leader ends backups whose
 * deletion no server saw. Written before a run begins anything, removed after everything has ended.
 */
export class UnderWayNotes {
  readonly #options: UnderWayOptions;
  /** UIDs of known notes. */
  readonly #known = new Set<string>();
  /** UIDs of notes whose creation got no answer. They may exist. */
  readonly #unsure = new Set<string>();
  /** Server errors in a row. */
  #failed = 0;

  constructor(options: UnderWayOptions) {
    this.#options = options;
  }

  /** Whether a note exists, or may exist. */
  has(uid: string): boolean {
    return this.#known.has(uid) || this.#unsure.has(uid);
  }

  /**
   * If notes are refused, the backup continues without one. May be repeated. Throws passing errors
   * and `LEADERSHIP_LOST`.
   */
  async write(backup: Backup, signal: AbortSignal): Promise<void> {
    const { client, logger, namespace, assertLeading } = this.#options;
    const { name, uid } = backup.metadata;
    if (this.#known.has(uid)) return;
    assertLeading();
    this.#unsure.add(uid);
    try {
      await client.create(
        CONFIG_MAPS,
        {
          metadata: { namespace, name: `${UNDER_WAY_PREFIX}${uid}`, labels: LABELS },
          data: { [FIELD]: textOf(backup) },
        },
        { signal },
      );
    } catch (error) {
      if (!isCode(error, 'KUBE_ALREADY_EXISTS')) {
        const isOwn = isServerError(error) && ++this.#failed >= FAILED_MAX;
        const isPassed = !isPassing(error) && !isCode(error, 'KUBE_UNAUTHORIZED');
        if (!isOwn && !isPassed) throw error;
        const fields = { backup: name, error: messageOf(error) };
        const text = `a backup is made without a note: should its Backup be deleted while no server leads, what it has begun stays; ${ALLOW}`;
        logger.warn(fields, text);
        this.#unsure.delete(uid);
        return;
      }
    }
    this.#failed = 0;
    this.#known.add(uid);
    this.#unsure.delete(uid);
  }

  /** Removes a note, if any. Throws `KUBE_*` errors and `LEADERSHIP_LOST`. */
  async remove(uid: string, signal: AbortSignal): Promise<void> {
    const { client, namespace, assertLeading } = this.#options;
    if (!this.has(uid)) return;
    assertLeading();
    await client.delete(CONFIG_MAPS, { namespace, name: `${UNDER_WAY_PREFIX}${uid}` }, { signal });
    this.#known.delete(uid);
    this.#unsure.delete(uid);
  }

  /** Lists all notes; none if this server may not list them. Throws passing errors. */
  async list(signal: AbortSignal): Promise<NotedBackup[]> {
    const { client, logger, namespace } = this.#options;
    try {
      const found = await client.collect(
        CONFIG_MAPS,
        { namespace, labelSelector: `${LABEL}=${LABELS[LABEL]}`, signal },
        (note) => {
          const backup = backupIn(note);
          return backup ? [{ name: backup.metadata.name, uid: backup.metadata.uid }] : [];
        },
      );
      for (const { uid } of found) this.#known.add(uid);
      return found;
    } catch (error) {
      if (!isCode(error, 'KUBE_FORBIDDEN')) throw error;
      const text = `nobody can say which backups were deleted while no server led: ${ALLOW}`;
      logger.warn({ error: messageOf(error) }, text);
      return [];
    }
  }

  /** The Backup at the start of its run; undefined without a note. Throws `KUBE_*` errors. */
  async load(uid: string, signal: AbortSignal): Promise<Backup | undefined> {
    const { client, namespace } = this.#options;
    const note = await client.find(
      CONFIG_MAPS,
      { namespace, name: `${UNDER_WAY_PREFIX}${uid}` },
      { signal },
    );
    return note && backupIn(note);
  }
}

const isServerError = (error: unknown): boolean =>
  error instanceof CodedError && error.facts.httpStatus === 500;

/** Fields that end a run: its identity, location and hooks, and data for plugins. */
function textOf({ apiVersion, kind, metadata, spec, status }: Backup): string {
  const { name, namespace, uid, creationTimestamp, labels, annotations } = metadata;
  // Always in the note: without it an unsealed journal would be trusted.
  const sealed = isJournalSealed({ metadata }) ? journalAnnotations({ metadata }, true) : undefined;
  const { startTimestamp } = (status ?? {}) as { startTimestamp?: string };
  const about = {
    apiVersion,
    kind,
    metadata: { name, namespace, uid, creationTimestamp, labels, annotations: sealed },
    status: { startTimestamp },
  };
  const whole = { ...about, metadata: { ...about.metadata, annotations }, spec };
  const { storageLocation, hooks } = spec;
  // Very large Backups lose fields until they fit.
  const tries = [whole, { ...about, spec: { storageLocation, hooks } }];
  const fits = tries
    .map((each) => JSON.stringify(each))
    .find((text) => Buffer.byteLength(text) <= NOTE_BYTES_MAX);
  return (
    fits ??
    JSON.stringify({
      ...about,
      metadata: { name, namespace, uid, creationTimestamp, annotations: sealed },
      spec: { storageLocation },
    })
  );
}

/** Undefined if the content was changed by others. */
function backupIn({ metadata, data }: ConfigMap): Backup | undefined {
  try {
    const backup = JSON.parse(data?.[FIELD] ?? '') as Partial<Backup> | null;
    const { name, uid } = backup?.metadata ?? {};
    if (!name || metadata.name !== `${UNDER_WAY_PREFIX}${uid ?? ''}`) return undefined;
    return { ...backup, spec: backup?.spec ?? {} } as Backup;
  } catch {
    return undefined;
  }
}
