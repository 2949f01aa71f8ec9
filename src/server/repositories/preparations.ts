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
import { isReadOnlyLocation, placeIn } from './connected-to.ts';
import { HangingAttempts } from './hanging-attempts.ts';
import { prepareRepository, readOnly } from './prepare.ts';
import { fullIntervalNs } from './repository-config.ts';
import type { RepositoryWriter } from './repository-writer.ts';

export interface PreparationsOptions {
  readonly logger: Logger;
  readonly namespace: string;
  /** With all that makes it patient; `create` where its directory may be made. */
  readonly openStorage: (location: string, options: { create: boolean }) => Promise<BlobStorage>;
  /** For credentials. */
  readonly directory: string;
  readonly defaultCredentials: (kind: StorageKind) => string | undefined;
  /** How long one repository may take to be prepared; by default 10 minutes. */
  readonly prepareMs?: number;
  /** Of this process, whichever leadership began them; by default one's own. */
  readonly hanging?: HangingAttempts;
}

/** Of one repository at its location. */
export interface Preparation {
  /** Of the BackupRepository: `namespace/name`. */
  readonly key: string;
  readonly repository: BackupRepository;
  readonly location: KubeObject;
  /** By `connectionOf`. */
  readonly connection: string;
  readonly writer: Pick<RepositoryWriter, 'client' | 'signal' | 'assertLeading'>;
}

/** Of one location. Each derives a key, which takes 64 MiB for a moment. Our choice. */
const PREPARED_AT_ONCE = 2;
/** At one place, before no more is begun there: Node has four threads for files. Our choice. */
const HANGING_MAX = 2;
/** For what is under way when this process stops. Our choice. */
const SETTLE_MS = 5000;
/**
 * For one repository. Requests to a storage over a network end by themselves within minutes; a
 * directory on a server that is gone never answers. Our choice.
 */
const PREPARE_MS = 600_000;

/**
 * Repositories that are prepared, beside the controller's workers, and for each location by itself:
 * a bucket that does not answer keeps only its own repositories waiting.
 */
export class Preparations {
  readonly #options: PreparationsOptions;
  /** By location. */
  readonly #limiters = new Map<string, Limiter>();
  readonly #underWay = new Map<string, Promise<void>>();
  /** By key, the places at which attempts of this leadership were given up and have not ended. */
  readonly #hanging = new Map<string, string[]>();
  readonly #allHanging: HangingAttempts;

  constructor(options: PreparationsOptions) {
    this.#options = options;
    this.#allHanging = options.hanging ?? new HangingAttempts();
  }

  isUnderWay(key: string): boolean {
    return this.#underWay.has(key);
  }

  /** Whether an attempt with this repository at this place was given up, and has not ended. */
  hangsAt(key: string, place: string): boolean {
    return this.#hanging.get(key)?.includes(place) === true;
  }

  /**
   * While none of this key is under way. `onEnd` is called once, without an error where the
   * repository is ready.
   */
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
   * Resolves when nothing is under way any more, or soon: what hangs then writes nothing, since
   * this process does not lead.
   */
  async settle(): Promise<void> {
    const ends = [...this.#underWay.values()];
    if (ends.length === 0) return;
    await Promise.race([Promise.all(ends), sleep(SETTLE_MS, undefined, { ref: false })]);
  }

  /**
   * Gives its place to others when the time is over, or this process leads no more: what still
   * hangs then writes nothing, not even when this process leads once more. Throws
   * `PREPARE_TIMED_OUT`, `LOCATION_HANGS` and what {@link prepareRepository} throws.
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
        // A directory without anything in it: nothing is created there either.
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
