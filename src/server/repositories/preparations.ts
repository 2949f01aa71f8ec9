import { setTimeout as sleep } from 'node:timers/promises';
import {
  asError,
  CodedError,
  createLimiter,
  isCode,
  type Limiter,
  type Logger,
  untilAborted,
} from '../../base/index.ts';
import type { BlobStorage } from '../../blob/index.ts';
import { parseBackupStorageLocation, retentionOf, type StorageKind } from '../../config/index.ts';
import type { BackupRepository, KubeObject } from '../../kube/index.ts';
import { loadRepositoryAccess, type RepositoryAccess } from '../../repository-access/index.ts';
import { isReadOnlyLocation, placeIn } from './connection-annotation.ts';
import { HangingAttempts } from './hanging-attempts.ts';
import { prepareRepository, readOnly } from './prepare.ts';
import { fullIntervalNs } from './repository-config.ts';
import type { RepositoryWriter } from './repository-writer.ts';

export interface PreparationsOptions {
  readonly logger: Logger;
  readonly namespace: string;
  /** Opens storage with retries. `create`: creates a missing directory. */
  readonly openStorage: (location: string, options: { create: boolean }) => Promise<BlobStorage>;
  /** Credentials are written there. */
  readonly directory: string;
  readonly defaultCredentials: (kind: StorageKind) => string | undefined;
  /** Time limit for one repository; default 10 minutes. */
  readonly prepareMs?: number;
  /** Shared by all leaderships of this process. Default: a new one. */
  readonly hanging?: HangingAttempts;
}

/** The preparation of one repository. */
export interface Preparation {
  /** `namespace/name` of the BackupRepository. */
  readonly key: string;
  readonly repository: BackupRepository;
  readonly location: KubeObject;
  /** By `connectionOf`. */
  readonly connection: string;
  readonly writer: Pick<RepositoryWriter, 'client' | 'signal' | 'assertLeading'>;
}

/** Per location. Each derives a key, which briefly takes 64 MiB. Our choice. */
const PREPARED_AT_ONCE = 2;
/** Limit per place before new attempts are refused: Node has four threads for files. Our choice. */
const HANGING_MAX = 2;
/** Time limit for running preparations when this process stops. Our choice. */
const SETTLE_MS = 5000;
/**
 * Time limit for one repository. Requests over a network end within minutes, but a directory on a
 * dead server never answers. Our choice.
 */
const PREPARE_MS = 600_000;

/**
 * Prepares repositories outside of the controller's workers. Each location has its own limit: a
 * hanging bucket delays only its own repositories.
 */
export class Preparations {
  readonly #options: PreparationsOptions;
  readonly #limiters = new Map<string, Limiter>();
  readonly #underWay = new Map<string, Promise<void>>();
  /** Places of this leadership's attempts that hang, by key. */
  readonly #hanging = new Map<string, string[]>();
  readonly #allHanging: HangingAttempts;

  constructor(options: PreparationsOptions) {
    this.#options = options;
    this.#allHanging = options.hanging ?? new HangingAttempts();
  }

  isUnderWay(key: string): boolean {
    return this.#underWay.has(key);
  }

  /** Whether an attempt for this repository at this place still hangs. */
  hangsAt(key: string, place: string): boolean {
    return this.#hanging.get(key)?.includes(place) === true;
  }

  /** Call only if none of this key is running. `onEnd` is called once, with an error on failure. */
  begin(preparation: Preparation, onEnd: (error: Error | undefined) => void): void {
    const { key, location } = preparation;
    const { name } = location.metadata;
    const limiter = this.#limiters.get(name) ?? createLimiter(PREPARED_AT_ONCE);
    this.#limiters.set(name, limiter);
    const task = limiter
      .run(() => this.#prepareInTime(preparation))
      .then(() => undefined, asError)
      .then((error) => {
        this.#underWay.delete(key);
        onEnd(error);
      });
    this.#underWay.set(key, task);
  }

  /**
   * Resolves when all preparations have ended, or after a time limit. A hanging preparation writes
   * nothing later, because this process does not lead.
   */
  async settle(): Promise<void> {
    const ends = [...this.#underWay.values()];
    if (ends.length === 0) return;
    await Promise.race([Promise.all(ends), sleep(SETTLE_MS, undefined, { ref: false })]);
  }

  /**
   * Frees its slot at the time limit, or when leadership ends. A hanging task writes nothing later,
   * even if this process leads again. Throws `PREPARE_TIMED_OUT`, `LOCATION_HANGS` and errors of
   * {@link prepareRepository}.
   */
  async #prepareInTime({
    key,
    repository,
    location,
    connection,
    writer,
  }: Preparation): Promise<void> {
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
      client,
      namespace,
      directory,
      defaultCredentials,
      signal,
      volumeNamespace: spec.volumeNamespace,
      storageLocation: spec.backupStorageLocation,
      isWriting: false,
    });
    if (access.isChangingPassword) throw changing();
    logger.info({ repository: metadata.name }, 'preparing the repository');
    await using storage = await openStorage(access.location, { create: !isReadOnly }).catch(
      (error: unknown) => {
        // An empty directory: nothing may be created there either.
        if (isReadOnly && isCode(error, 'STORAGE_NOT_FOUND')) throw readOnly(locationName);
        throw error;
      },
    );
    await prepareRepository({
      storage,
      logger,
      isReadOnly,
      assertLeading,
      password: access.password,
      clock: client.clock,
      locationName,
      fullIntervalNs: interval,
      retention: retentionOf(
        parseBackupStorageLocation({ ...location, kind: 'BackupStorageLocation' }),
      ),
    });
  }
}

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
