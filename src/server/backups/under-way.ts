import { CodedError, isCode, type Logger, messageOf } from '../../base/index.ts';
import {
  type Backup,
  CONFIG_MAPS,
  type ConfigMap,
  isPassing,
  type KubeClient,
  NOT_IN_BACKUPS,
  UNDER_WAY_PREFIX,
} from '../../kube/index.ts';
import { isJournalSealed, journalAnnotations } from '../runs/stored-tries.ts';

export interface UnderWayOptions {
  readonly client: KubeClient;
  readonly logger: Logger;
  readonly namespace: string;
  readonly assertLeading: () => void;
}

/** Which Backup a note is of. */
export interface NotedBackup {
  readonly name: string;
  readonly uid: string;
}

/**
 * Of the ConfigMap that is there while the Backup of a UID is under way, or what it has left is
 * being ended.
 */
export const noteName = (uid: string): string => `${UNDER_WAY_PREFIX}${uid}`;
const LABEL = 'longshore.io/under-way';
const LABELS = {
  [LABEL]: 'backup',
  // A restored note would name a backup that no server is making.
  ...NOT_IN_BACKUPS,
};
const FIELD = 'backup.json';
/** A ConfigMap has 1 MiB, and etcd little more. Our choice. */
const NOTE_BYTES_MAX = 512 << 10;
/** A webhook that fails must not keep backups from being made. Our choice. */
const FAILED_MAX = 5;
const ALLOW = 'let the ServiceAccount of this server get, list, create and delete ConfigMaps here';

/**
 * Notes of the backups that are under way, a ConfigMap for each: by them a server that leads later
 * knows of a Backup that was deleted while nobody led, and ends what it has begun. Written before
 * anything is begun, removed after everything has ended.
 */
export class UnderWayNotes {
  readonly #options: UnderWayOptions;
  /** UIDs of those that are there, as far as is known. */
  readonly #known = new Set<string>();
  /** UIDs of those whose writing had no answer: they may be there. */
  readonly #unsure = new Set<string>();
  /** How often in a row the API server said that something is wrong on its side. */
  #failed = 0;

  constructor(options: UnderWayOptions) {
    this.#options = options;
  }

  /** Whether there is one, or may be one. */
  has(uid: string): boolean {
    return this.#known.has(uid) || this.#unsure.has(uid);
  }

  /**
   * May be repeated. Where notes are refused the backup goes on without. Throws what is passing,
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

  /** Where there is one. Throws the `KUBE_*` errors, and `LEADERSHIP_LOST`. */
  async remove(uid: string, signal: AbortSignal): Promise<void> {
    const { client, namespace, assertLeading } = this.#options;
    if (!this.has(uid)) return;
    assertLeading();
    await client.delete(CONFIG_MAPS, { namespace, name: `${UNDER_WAY_PREFIX}${uid}` }, { signal });
    this.#known.delete(uid);
    this.#unsure.delete(uid);
  }

  /** All of them; none where this server may not list them. Throws what is passing. */
  async list(signal: AbortSignal): Promise<NotedBackup[]> {
    const { client, logger, namespace } = this.#options;
    try {
      // Only the names are kept: there may be ten thousand.
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

  /**
   * The Backup as it was when its run began; undefined where there is no note. Throws the `KUBE_*`
   * errors.
   */
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

/**
 * What ends a run: who it is, where its files are, and how its pods are thawed and its plugins
 * asked.
 */
function textOf({ apiVersion, kind, metadata, spec, status }: Backup): string {
  const { name, namespace, uid, creationTimestamp, labels, annotations } = metadata;
  // In every note: without it a plain journal would be believed.
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
  // Of one that is as long as its CR may be: less and less, and last what no Backup is too long
  // for.
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

/** Undefined where somebody else has written something into it. */
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
