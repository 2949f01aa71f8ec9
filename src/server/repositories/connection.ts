import { setTimeout as sleep } from 'node:timers/promises';
import {
  asError,
  CodedError,
  createLimiter,
  isCanceled,
  isCode,
  type Limiter,
  type Logger,
  messageOf,
  redactAndCut,
  rfc3339Seconds,
  untilAborted,
} from '../../base/index.ts';
import type { BlobStorage } from '../../blob/index.ts';
import { parseBackupStorageLocation, retentionOf, type StorageKind } from '../../config/index.ts';
import { type BackupRepository, CONFIG_MAPS, type KubeObject } from '../../kube/index.ts';
import { loadRepositoryAccess, type RepositoryAccess } from '../../repository-access/index.ts';
import {
  attemptedAt,
  CONNECTED,
  connectionOf,
  isReadOnlyLocation,
  placeIn,
} from './connected-to.ts';
import { HangingAttempts } from './hanging-attempts.ts';
import { isHeld } from './password-change/hold.ts';
import { prepareRepository, readOnly } from './prepare.ts';
import { fullIntervalNs, repositoryConfigOf } from './repository-config.ts';
import { annotate, type RepositoryWriter } from './repository-writer.ts';

export interface ConnectionOptions {
  readonly logger: Logger;
  readonly namespace: string;
  /** With all that makes it patient; `create` where its directory may be made. */
  readonly openStorage: (location: string, options: { create: boolean }) => Promise<BlobStorage>;
  /** For credentials. */
  readonly directory: string;
  readonly defaultCredentials: (kind: StorageKind) => string | undefined;
  /** `spec.maintenanceFrequency` of new repositories, as Go writes durations. */
  readonly frequency: string;
  /** Velero's ConfigMap of repository settings. */
  readonly configMap: string | undefined;
  /** Looks at a repository again, now. */
  readonly wake: (key: string) => void;
  /** How long one repository may take to be prepared; by default 10 minutes. */
  readonly prepareMs?: number;
  /** Of this process, whichever leadership began them; by default one's own. */
  readonly hanging?: HangingAttempts;
}

/** Velero: pkg/controller/backup_repository_controller.go. */
const REESTABLISH = 're-establish on BSL change, create or delete';
/** Of one location. Each derives a key, which takes 64 MiB for a moment. Our choice. */
const PREPARED_AT_ONCE = 2;
/** At one place, before no more is begun there: Node has four threads for files. Our choice. */
const HANGING_MAX = 2;
/** Between two attempts: the first, and the most, which is Velero's resync period. */
const RETRY_FIRST_MS = 15_000;
const RETRY_MAX_MS = 300_000;
/** For what is under way when this process stops. Our choice. */
const SETTLE_MS = 5000;
/**
 * For one repository. Requests to a storage over a network end by themselves within minutes; a directory on a server that is gone never
 * answers. Our choice.
 */
const PREPARE_MS = 600_000;
/** Between two looks at one whose password is being changed; the end of that wakes it, too. Our choice. */
const HELD_MS = 60_000;

/** How an attempt ended that nobody has written down yet. */
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
 * Makes BackupRepositories ready, and says why where it cannot: when they are new, when the place they lie in has changed, and again and
 * again while they are not.
 */
export class Connections {
  readonly #options: ConnectionOptions;
  /** By location. */
  readonly #limiters = new Map<string, Limiter>();
  readonly #underWay = new Map<string, Promise<void>>();
  /** By key, the places at which attempts of this leadership were given up and have not ended. */
  readonly #hanging = new Map<string, string[]>();
  readonly #allHanging: HangingAttempts;
  readonly #outcomes = new Map<string, Outcome>();
  /** By key, what a Ready one is connected to as far as this process knows. */
  readonly #known = new Map<string, string>();
  readonly #attempts = new Map<string, Attempt>();
  #passwordVersion = '';

  constructor(options: ConnectionOptions) {
    this.#options = options;
    this.#allHanging = options.hanging ?? new HangingAttempts();
  }

  /** Which password there is. True when it is another one than before: everything has to be checked then. */
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

  /** The repository as it is afterwards, and when to look at it again where it is not ready. */
  async reconcile(
    key: string,
    repository: BackupRepository,
    location: KubeObject | undefined,
    writer: RepositoryWriter,
  ): Promise<{ repository: BackupRepository; requeueAfterMs?: number }> {
    // Whoever changes the passwords opens it again, or leaves that to this process once the Secret has the new one.
    if (isHeld(repository)) return { repository, requeueAfterMs: HELD_MS };
    if (!location) return { repository: await this.#locationGone(repository, writer) };
    const connection = connectionOf(location, this.#passwordVersion);
    const phase = repository.status?.phase;
    if (phase === 'Ready') {
      const before = this.#known.get(key) ?? repository.metadata.annotations?.[CONNECTED];
      if (before === undefined || before === connection) {
        this.#known.set(key, connection);
        if (repository.metadata.annotations?.[CONNECTED] !== undefined) return { repository };
        // One that Velero's server has connected, before this one was here, is taken for what it is. The next leader has to know that.
        const adopted = await writer.update(repository, (draft) =>
          annotate(draft, CONNECTED, connection),
        );
        return { repository: adopted };
      }
      // A Secret that was written may hold the same password, or one that opens the repository already: whoever uses it goes on meanwhile.
      const isSamePlace = placeIn(before) === placeIn(connection);
      if (!isSamePlace) repository = await this.#setNotReady(repository, REESTABLISH, writer);
    }
    const outcome = this.#outcomes.get(key);
    if (outcome) {
      const isOfThis = outcome.uid === repository.metadata.uid && outcome.connection === connection;
      if (isOfThis) return this.#finish(key, repository, outcome, writer);
      this.#outcomes.delete(key);
    }
    // It is looked at again when that has ended.
    if (this.#underWay.has(key)) return { repository };
    const attempt = this.#attempts.get(key);
    const waitMs = attempt?.place === attemptedAt(connection, location) ? restMs(attempt) : 0;
    const isNewHere = phase !== 'NotReady' && phase !== 'Ready';
    if (waitMs > 0 && !isNewHere) return { repository, requeueAfterMs: waitMs };
    // It would hang beside the first. Another place may answer.
    if (this.#hanging.get(key)?.includes(placeIn(connection)) === true) {
      return { repository, requeueAfterMs: RETRY_MAX_MS };
    }
    // One that never was ready is set up by what the ConfigMap says now.
    const isNew = repository.status?.lastMaintenanceTime == null;
    if (isNew) repository = await this.#setDefaults(repository, writer);
    this.#begin(key, repository, location, connection, writer);
    return { repository };
  }

  /**
   * Beside the controller's workers, and for each location by itself: a bucket that does not answer keeps only its own repositories
   * waiting.
   */
  #begin(
    key: string,
    repository: BackupRepository,
    location: KubeObject,
    connection: string,
    writer: RepositoryWriter,
  ): void {
    const { name } = location.metadata;
    const limiter = this.#limiters.get(name) ?? createLimiter(PREPARED_AT_ONCE);
    this.#limiters.set(name, limiter);
    const { uid } = repository.metadata;
    const place = attemptedAt(connection, location);
    const task = limiter
      .run(() => this.#prepareInTime(key, repository, location, connection, writer))
      .then(
        () => ({ uid, connection, place, error: undefined }),
        (error: unknown) => ({ uid, connection, place, error: asError(error) }),
      )
      .then((outcome) => {
        this.#underWay.delete(key);
        this.#outcomes.set(key, outcome);
        this.#options.wake(key);
      });
    this.#underWay.set(key, task);
  }

  /** Resolves when nothing is under way any more, or soon: what hangs then writes nothing, since this process does not lead. */
  async settle(): Promise<void> {
    const ends = [...this.#underWay.values()];
    if (ends.length === 0) return;
    await Promise.race([Promise.all(ends), sleep(SETTLE_MS, undefined, { ref: false })]);
  }

  async #finish(
    key: string,
    repository: BackupRepository,
    { error, connection, place }: Outcome,
    writer: RepositoryWriter,
  ): Promise<{ repository: BackupRepository; requeueAfterMs?: number }> {
    if (error && isOfCluster(error)) {
      // Says nothing about the repository: the controller tries again.
      this.#outcomes.delete(key);
      throw error;
    }
    if (error) {
      const failures = (this.#attempts.get(key)?.failures ?? 0) + 1;
      const attempt = { atMs: performance.now(), place, failures };
      if (repository.status?.phase === 'Ready' && !isCode(error, ...NOT_OURS)) {
        // It could not be asked whether the password still opens it, which says nothing about those who have it open.
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

  /**
   * Gives its place to others when the time is over, or this process leads no more: what still hangs then writes nothing, not even when
   * this process leads once more. Throws `PREPARE_TIMED_OUT`, `LOCATION_HANGS` and what {@link prepareRepository} throws.
   */
  async #prepareInTime(
    key: string,
    repository: BackupRepository,
    location: KubeObject,
    connection: string,
    writer: RepositoryWriter,
  ): Promise<void> {
    const { prepareMs = PREPARE_MS } = this.#options;
    writer.signal.throwIfAborted();
    const place = placeIn(connection);
    if (this.#allHanging.countAt(place) >= HANGING_MAX) {
      throw locationHangs(`${this.#options.namespace}/${location.metadata.name}`);
    }
    const late = AbortSignal.timeout(prepareMs);
    const signal = AbortSignal.any([writer.signal, late]);
    const assertLeading = (): void => {
      if (signal.aborted) throw timedOut(prepareMs);
      writer.assertLeading();
    };
    let hasEnded = false;
    const task = this.#prepare(repository, location, {
      client: writer.client,
      signal,
      assertLeading,
    });
    const end = task.then(
      () => undefined,
      () => undefined,
    );
    void end.then(() => {
      hasEnded = true;
    });
    await untilAborted(signal, task);
    if (hasEnded || !signal.aborted) return;
    this.#noteHanging(key, place, end);
    writer.signal.throwIfAborted();
    throw timedOut(prepareMs);
  }

  #noteHanging(key: string, place: string, end: Promise<void>): void {
    this.#allHanging.add(place, end);
    this.#hanging.set(key, [...(this.#hanging.get(key) ?? []), place]);
    void end.then(() => {
      const left = (this.#hanging.get(key) ?? []).filter((each) => each !== place);
      if (left.length > 0) this.#hanging.set(key, left);
      else this.#hanging.delete(key);
    });
  }

  async #prepare(
    { spec, metadata }: BackupRepository,
    location: KubeObject,
    {
      client,
      signal,
      assertLeading,
    }: Pick<RepositoryWriter, 'client' | 'signal' | 'assertLeading'>,
  ): Promise<void> {
    const { namespace, openStorage, directory, defaultCredentials, logger } = this.#options;
    const locationName = `${namespace}/${spec.backupStorageLocation}`;
    const isReadOnly = isReadOnlyLocation(location);
    const interval = fullIntervalNs(spec.repositoryConfig);
    const access: RepositoryAccess = await loadRepositoryAccess({
      ...{ client, namespace, directory, defaultCredentials, signal },
      volumeNamespace: spec.volumeNamespace,
      storageLocation: spec.backupStorageLocation,
      isWriting: false,
    });
    if (access.isChangingPassword) throw changing();
    logger.info({ repository: metadata.name }, 'preparing the repository');
    await using storage = await openStorage(access.location, { create: !isReadOnly }).catch(
      (error: unknown) => {
        // A directory without anything in it: nothing is created there either.
        if (isReadOnly && isCode(error, 'STORAGE_NOT_FOUND')) throw readOnly(locationName);
        throw error;
      },
    );
    await prepareRepository({
      ...{ storage, logger, isReadOnly, assertLeading },
      password: access.password,
      clock: client.clock,
      locationName,
      fullIntervalNs: interval,
      retention: retentionOf(
        parseBackupStorageLocation({ ...location, kind: 'BackupStorageLocation' }),
      ),
    });
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

  /** A ConfigMap that cannot be read as one is reported, and ignored, as by Velero. */
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

/** What is wrong with the API server, or with this process's place in it, says nothing about a repository. */
const isOfCluster = (error: unknown): boolean =>
  isCanceled(error) ||
  isCode(
    error,
    'LEADERSHIP_LOST',
    'KUBE_CONFLICT',
    'KUBE_UNAVAILABLE',
    'KUBE_THROTTLED',
    'KUBE_GONE',
    'PASSWORD_CHANGE_UNDER_WAY',
  );

/** What an attempt may end with that tells for sure that a Ready repository is of no use as it is. */
const NOT_OURS = ['WRONG_PASSWORD', 'REPOSITORY_CORRUPTED', 'STORAGE_NOT_EMPTY'] as const;

const timedOut = (afterMs: number): CodedError =>
  new CodedError(
    'PREPARE_TIMED_OUT',
    `preparing the repository took longer than ${Math.round(afterMs / 1000)} s: its storage does not answer, or is very slow`,
  );

const locationHangs = (locationName: string): CodedError =>
  new CodedError(
    'LOCATION_HANGS',
    `${HANGING_MAX} repositories at location ${locationName} hang while they are prepared, since its storage does not answer: no other is begun there before one of them has ended`,
  );

const changing = (): CodedError =>
  new CodedError(
    'PASSWORD_CHANGE_UNDER_WAY',
    'the password of all repositories is being changed: nothing is created before that has ended',
  );

function restMs({ atMs, failures }: Attempt): number {
  const delayMs = Math.min(RETRY_MAX_MS, RETRY_FIRST_MS * 2 ** Math.min(failures - 1, 10));
  return Math.max(0, atMs + delayMs - performance.now());
}
