import {
  backoffMs,
  isCanceled,
  isCode,
  messageOf,
  redactAndCut,
  rfc3339Seconds,
} from '../../base/index.ts';
import {
  type BackupRepository,
  CONFIG_MAPS,
  isPassingAnswer,
  type KubeObject,
} from '../../kube/index.ts';
import { attemptedAt, CONNECTED, connectionOf, placeIn } from './connection-annotation.ts';
import { isHeld } from './password-change/repository-lock.ts';
import { type Preparation, Preparations, type PreparationsOptions } from './preparations.ts';
import { repositoryConfigOf } from './repository-config.ts';
import { annotate, type RepositoryWriter } from './repository-writer.ts';

export interface ConnectionOptions extends PreparationsOptions {
  /** `spec.maintenanceFrequency` of new repositories, as a Go duration. */
  readonly frequency: string;
  /** Velero's ConfigMap of repository settings. */
  readonly configMap: string | undefined;
  /** Reconciles a repository now. */
  readonly wake: (key: string) => void;
}

/** Velero: pkg/controller/backup_repository_controller.go. */
const REESTABLISH = 're-establish on BSL change, create or delete';
/** First and longest delay between two attempts. The longest is Velero's resync period. */
const RETRY_FIRST_MS = 15_000;
const RETRY_MAX_MS = 300_000;
/** Interval between checks during a password change. Its end wakes them, too. Our choice. */
const HELD_MS = 60_000;

/** The result of an attempt, until it is written to the BackupRepository. */
interface Outcome {
  readonly uid: string;
  readonly connection: string;
  readonly place: string;
  readonly error: Error | undefined;
}

interface Attempt {
  readonly atMs: number;
  readonly place: string;
  readonly failures: number;
}

/**
 * Makes BackupRepositories ready, or records the reason for a failure. Runs for new repositories,
 * after a change of their location, and repeatedly until they are ready.
 */
export class Connections {
  readonly #options: ConnectionOptions;
  readonly #preparations: Preparations;
  readonly #outcomes = new Map<string, Outcome>();
  /** Connections of Ready repositories that this process knows, by key. */
  readonly #known = new Map<string, string>();
  readonly #attempts = new Map<string, Attempt>();
  #passwordVersion = '';

  constructor(options: ConnectionOptions) {
    this.#options = options;
    this.#preparations = new Preparations(options);
  }

  /** Stores the version of the password. Returns whether it changed: then check everything. */
  notePassword(version: string): boolean {
    const isChanged = this.#passwordVersion !== version;
    this.#passwordVersion = version;
    return isChanged;
  }

  forget(key: string): void {
    this.#known.delete(key);
    this.#attempts.delete(key);
    this.#outcomes.delete(key);
  }

  /** Returns the updated repository, and the delay until the next check if it is not ready. */
  async reconcile(
    key: string,
    repository: BackupRepository,
    location: KubeObject | undefined,
    writer: RepositoryWriter,
  ): Promise<{ repository: BackupRepository; requeueAfterMs?: number }> {
    // The password change opens the repository, or this process does once the Secret is new.
    if (isHeld(repository)) return { repository, requeueAfterMs: HELD_MS };
    if (!location) return { repository: await this.#locationGone(repository, writer) };
    const connection = connectionOf(location, this.#passwordVersion);
    const phase = repository.status?.phase;
    if (phase === 'Ready') {
      const before = this.#known.get(key) ?? repository.metadata.annotations?.[CONNECTED];
      if (before === undefined || before === connection) {
        this.#known.set(key, connection);
        if (repository.metadata.annotations?.[CONNECTED] !== undefined) return { repository };
        // Velero's server connected it: trust that, and record it for the next leader.
        const adopted = await writer.update(repository, (draft) =>
          annotate(draft, CONNECTED, connection),
        );
        return { repository: adopted };
      }
      // A rewritten Secret may hold the same password, or the repository may have the new one
      // already. Movers continue meanwhile.
      const isSamePlace = placeIn(before) === placeIn(connection);
      if (!isSamePlace) repository = await this.#setNotReady(repository, REESTABLISH, writer);
    }
    const outcome = this.#outcomes.get(key);
    if (outcome) {
      const isOfThis = outcome.uid === repository.metadata.uid && outcome.connection === connection;
      if (isOfThis) return this.#finish(key, repository, outcome, writer);
      this.#outcomes.delete(key);
    }
    // The end of the preparation wakes it.
    if (this.#preparations.isUnderWay(key)) return { repository };
    const attempt = this.#attempts.get(key);
    const waitMs = attempt?.place === attemptedAt(connection, location) ? restMs(attempt) : 0;
    const isNewHere = phase !== 'NotReady' && phase !== 'Ready';
    if (waitMs > 0 && !isNewHere) return { repository, requeueAfterMs: waitMs };
    // A second attempt would hang like the first. A different place may answer.
    if (this.#preparations.hangsAt(key, placeIn(connection))) {
      return { repository, requeueAfterMs: RETRY_MAX_MS };
    }
    // A repository that was never ready takes the current settings of the ConfigMap.
    const isNew = repository.status?.lastMaintenanceTime == null;
    if (isNew) repository = await this.#setDefaults(repository, writer);
    this.#begin({ key, repository, location, connection, writer });
    return { repository };
  }

  #begin(preparation: Preparation): void {
    const { key, repository, location, connection } = preparation;
    const { uid } = repository.metadata;
    const place = attemptedAt(connection, location);
    this.#preparations.begin(preparation, (error) => {
      this.#outcomes.set(key, { uid, connection, place, error });
      this.#options.wake(key);
    });
  }

  /** Resolves when all preparations have ended, or after a short time limit. */
  settle(): Promise<void> {
    return this.#preparations.settle();
  }

  async #finish(
    key: string,
    repository: BackupRepository,
    { error, connection, place }: Outcome,
    writer: RepositoryWriter,
  ): Promise<{ repository: BackupRepository; requeueAfterMs?: number }> {
    if (error && isOfCluster(error)) {
      // Says nothing about the repository: the controller retries.
      this.#outcomes.delete(key);
      throw error;
    }
    if (error) {
      const failures = (this.#attempts.get(key)?.failures ?? 0) + 1;
      const attempt = { atMs: performance.now(), place, failures };
      if (repository.status?.phase === 'Ready' && !isCode(error, ...NOT_OURS)) {
        // The check of the password failed for another reason. Open repositories keep working.
        this.#outcomes.delete(key);
        this.#attempts.set(key, attempt);
        const { logger } = this.#options;
        const fields = { repository: repository.metadata.name, error: messageOf(error) };
        logger.warn(fields, 'it could not be checked whether the password opens the repository');
        return { repository, requeueAfterMs: restMs(attempt) };
      }
      const notReady = await this.#setNotReady(repository, messageOf(error), writer);
      this.#outcomes.delete(key);
      this.#attempts.set(key, attempt);
      this.#known.delete(key);
      return { repository: notReady, requeueAfterMs: restMs(attempt) };
    }
    const ready = await writer.update(repository, (draft) => {
      const now = rfc3339Seconds(writer.client.clock.nowNs());
      const lastMaintenanceTime = draft.status?.lastMaintenanceTime ?? now;
      draft.status = { ...draft.status, phase: 'Ready', message: '', lastMaintenanceTime };
      annotate(draft, CONNECTED, connection);
    });
    this.#outcomes.delete(key);
    this.#known.set(key, connection);
    this.#attempts.delete(key);
    if (repository.status?.phase !== 'Ready') {
      writer.events.record(ready, 'RepositoryReady', 'the repository is ready');
    }
    return { repository: ready };
  }

  async #setDefaults(
    repository: BackupRepository,
    writer: RepositoryWriter,
  ): Promise<BackupRepository> {
    const { frequency } = this.#options;
    const config = await this.#loadConfig(repository, writer);
    const isFrequencySet = !/^(?:0s?|)$/.test(repository.spec.maintenanceFrequency);
    const isSame =
      JSON.stringify(repository.spec.repositoryConfig ?? null) === JSON.stringify(config ?? null);
    if (isFrequencySet && isSame) return repository;
    return writer.update(repository, (draft) => {
      if (!isFrequencySet) draft.spec.maintenanceFrequency = frequency;
      if (config) draft.spec.repositoryConfig = config;
      else delete draft.spec.repositoryConfig;
    });
  }

  /** An invalid ConfigMap is reported and ignored, as in Velero. */
  async #loadConfig(
    repository: BackupRepository,
    { client, events, signal }: RepositoryWriter,
  ): Promise<Record<string, string> | undefined> {
    const { configMap: name, namespace, logger } = this.#options;
    if (name === undefined || name === '') return undefined;
    const found = await client.find(CONFIG_MAPS, { namespace, name }, { signal });
    try {
      return repositoryConfigOf(name, found?.data, repository.spec.repositoryType ?? '');
    } catch (error) {
      const message = messageOf(error);
      logger.warn({ repository: repository.metadata.name, error: message }, 'settings ignored');
      events.record(repository, 'BadConfig', message, 'Warning');
      return undefined;
    }
  }

  async #locationGone(
    repository: BackupRepository,
    writer: RepositoryWriter,
  ): Promise<BackupRepository> {
    const { namespace } = this.#options;
    const text = `backup storage location ${namespace}/${repository.spec.backupStorageLocation} does not exist`;
    return this.#setNotReady(repository, text, writer);
  }

  async #setNotReady(
    repository: BackupRepository,
    text: string,
    writer: RepositoryWriter,
  ): Promise<BackupRepository> {
    const message = redactAndCut(text);
    const { phase, message: before } = repository.status ?? {};
    if (phase === 'NotReady' && before === message) return repository;
    const { logger } = this.#options;
    logger.warn({ repository: repository.metadata.name, message }, 'the repository is not ready');
    const written = await writer.update(repository, (draft) => {
      draft.status = { ...draft.status, phase: 'NotReady', message };
    });
    writer.events.record(written, 'RepositoryNotReady', message, 'Warning');
    return written;
  }
}

/** Errors of the API server or of leadership say nothing about the repository. */
const isOfCluster = (error: unknown): boolean =>
  isCanceled(error) ||
  isPassingAnswer(error) ||
  isCode(error, 'LEADERSHIP_LOST', 'PASSWORD_CHANGE_UNDER_WAY');

/** Errors that prove that a Ready repository cannot be used. */
const NOT_OURS = ['WRONG_PASSWORD', 'REPOSITORY_CORRUPTED', 'STORAGE_NOT_EMPTY'] as const;

function restMs({ atMs, failures }: Attempt): number {
  const delayMs = backoffMs(failures, { firstMs: RETRY_FIRST_MS, maxMs: RETRY_MAX_MS });
  return Math.max(0, atMs + delayMs - performance.now());
}
