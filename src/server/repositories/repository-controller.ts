import { setTimeout as sleep } from 'node:timers/promises';
import type { Registry } from 'prom-client';
import { isCode, type Logger, messageOf, redactAndCut } from '../../base/index.ts';
import { WELL_KNOWN_PASSWORD } from '../../archive/index.ts';
import {
  BACKUP_REPOSITORIES,
  BACKUP_STORAGE_LOCATIONS,
  type BackupRepository,
  Cache,
  Controller,
  type Job,
  JOBS,
  keyOf,
  type KubeClient,
  type KubeObject,
  type ObjectRef,
  PASSWORD_SECRET,
  refOf,
  type Result,
  SECRETS,
} from '../../kube/index.ts';
import { PASSWORD_KEY, passwordIn, verificationOf } from '../../repository-access/index.ts';
import { type Lead, LeadingController } from '../leading-controller.ts';
import { serverEvents } from '../server-events.ts';
import { isReadOnlyLocation } from './connection-annotation.ts';
import { type ConnectionOptions, Connections } from './connection.ts';
import { HangingAttempts } from './hanging-attempts.ts';
import { REPOSITORY_LABEL, repositoryLabelOf } from './maintenance/job.ts';
import { JobKeeper, type JobKeeperOptions } from './maintenance/job-keeper.ts';
import { frequencyOf, outlineOf } from './maintenance/job-outline.ts';
import { overdueSeconds } from './maintenance/maintenance-plan.ts';
import { ensurePasswordSecret, WELL_KNOWN_REMEDY } from './password-secret.ts';
import { type DescribedRepository, RepositoryMetrics } from './repository-metrics.ts';
import { RepositoryWriter } from './repository-writer.ts';

export interface RepositoryControllerOptions {
  readonly client: KubeClient;
  readonly logger: Logger;
  readonly namespace: string;
  readonly host: string;
  readonly registry: Registry;
  readonly connection: Omit<ConnectionOptions, 'logger' | 'namespace' | 'wake'>;
  readonly jobs: Omit<JobKeeperOptions, 'logger' | 'namespace' | 'metrics' | 'wake'>;
}

/** Repositories reconciled in parallel. Slow steps have limits of their own. Our choice. */
const WORKERS = 8;
/**
 * Interval between reads of the password's Secret. Watching one Secret by name would need the right
 * to list all Secrets. Our choice.
 */
const PASSWORD_MS = 60_000;
const PASSWORD_RETRY_MS = 2000;
/** Retry interval for unreadable buckets. Our choice. */
const UNREAD_MS = 15_000;

/**
 * Reconciles BackupRepositories like Velero's controller of that name: connection, changes of
 * location, and maintenance. Switch Velero's own controller off
 * (`velero server --disable-controllers=backup-repo`).
 */
export class RepositoryController extends LeadingController<RepositoryRun> {
  readonly name = 'repository';
  readonly #options: RepositoryControllerOptions;
  readonly #metrics: RepositoryMetrics;
  readonly #hanging = new HangingAttempts();

  constructor(options: RepositoryControllerOptions) {
    super(options);
    this.#options = options;
    this.#metrics = new RepositoryMetrics(options.registry, {
      repositories: () => this.now?.described() ?? [],
      jobs: () => this.now?.jobCounts() ?? { running: 0, waiting: 0 },
      isPasswordWellKnown: () => this.now?.isPasswordWellKnown,
    });
  }

  protected begin(lead: Lead): RepositoryRun {
    const connection = { ...this.#options.connection, hanging: this.#hanging };
    return new RepositoryRun({ ...this.#options, connection }, this.#metrics, lead);
  }
}

/** A period of leadership. */
class RepositoryRun {
  readonly #options: RepositoryControllerOptions;
  readonly #lead: Lead;
  readonly #metrics: RepositoryMetrics;
  readonly #writer: RepositoryWriter;
  readonly #repositories: Cache<BackupRepository>;
  readonly #locations: Cache<KubeObject>;
  readonly #jobs: Cache<Job>;
  readonly #controller: Controller;
  readonly #connections: Connections;
  readonly #keeper: JobKeeper;
  /** Keys of repositories, and in `#jobsOf` keys of Jobs, by the label on Jobs. */
  readonly #byLabel = new Map<string, string>();
  readonly #jobsOf = new Map<string, Set<string>>();
  #passwordFailure: string | undefined;
  /** Undefined without a password. */
  #isWellKnown: boolean | undefined;

  constructor(options: RepositoryControllerOptions, metrics: RepositoryMetrics, lead: Lead) {
    const { client, logger, namespace } = options;
    this.#options = options;
    this.#metrics = metrics;
    this.#lead = lead;
    const events = serverEvents(options);
    this.#writer = new RepositoryWriter({ ...lead, events });
    const scope = { namespace };
    this.#repositories = new Cache({ client, logger, scope, resource: BACKUP_REPOSITORIES });
    this.#locations = new Cache({ client, logger, scope, resource: BACKUP_STORAGE_LOCATIONS });
    this.#jobs = new Cache({
      client,
      logger,
      resource: JOBS,
      scope: { namespace, labelSelector: REPOSITORY_LABEL },
      trim: outlined,
    });
    this.#controller = new Controller({
      name: 'repository',
      workers: WORKERS,
      logger,
      reconcile: (key) => this.#reconcile(key),
    });
    const wake = (key: string): void => {
      this.#controller.queue.add(key);
    };
    this.#connections = new Connections({ ...options.connection, logger, namespace, wake });
    this.#keeper = new JobKeeper({ ...options.jobs, logger, namespace, metrics, wake });
  }

  get failure(): string | undefined {
    const failures = [this.#repositories, this.#locations, this.#jobs].map(
      ({ failure }) => failure,
    );
    return [...failures, this.#passwordFailure].find((failure) => failure !== undefined);
  }

  async run(): Promise<void> {
    const signal = this.#lead.signal;
    const caches = [this.#repositories, this.#locations, this.#jobs];
    const running = caches.map((cache) => cache.run(signal));
    const aborted = new Promise<void>((resolve) => {
      if (signal.aborted) resolve();
      signal.addEventListener('abort', () => resolve(), { once: true });
    });
    await Promise.race([
      Promise.all([...caches.map(({ synced }) => synced), this.#loadPassword()]),
      aborted,
    ]);
    if (!signal.aborted) this.#begin();
    await Promise.all([...running, this.#controller.run(signal), this.#followPassword()]);
    await this.#connections.settle();
    await this.#writer.events.flush();
  }

  #begin(): void {
    this.#jobs.onChange((after, before) => {
      this.#jobChanged(after, before);
    });
    for (const repository of this.#repositories.list()) {
      // Jobs of restic repositories are not followed, so their end would be missed.
      if (!isKept(repository)) continue;
      const label = repositoryLabelOf(repository.metadata.name);
      const jobs = this.#jobOutlines(label);
      this.#keeper.count({ key: keyOf(repository.metadata), repository, jobs });
    }
    this.#repositories.onChange((after, before) => {
      this.#repositoryChanged(after, before);
    });
    this.#locations.onChange((after, before) => {
      this.#locationChanged(after, before);
    });
  }

  #repositoryChanged(after: BackupRepository | undefined, before: BackupRepository | undefined) {
    const { metadata } = (after ?? before) as BackupRepository;
    const key = keyOf(metadata);
    const label = repositoryLabelOf(metadata.name);
    if (before && before.metadata.uid !== after?.metadata.uid) {
      this.#connections.forget(key);
      this.#keeper.forget(key);
    }
    if (!after) {
      this.#byLabel.delete(label);
      this.#metrics.forget(metadata.name);
      return;
    }
    this.#byLabel.set(label, key);
    this.#metrics.begin(metadata.name);
    this.#controller.queue.add(key);
  }

  #jobChanged(after: Job | undefined, before: Job | undefined): void {
    const { metadata } = (after ?? before) as Job;
    const label = metadata.labels?.[REPOSITORY_LABEL] ?? '';
    const jobs = this.#jobsOf.get(label) ?? new Set();
    if (after) this.#jobsOf.set(label, jobs.add(keyOf(metadata)));
    else jobs.delete(keyOf(metadata));
    if (jobs.size === 0) this.#jobsOf.delete(label);
    const key = this.#byLabel.get(label);
    if (key !== undefined) this.#controller.queue.add(key);
  }

  /** Ignores changes of the status, which happen each minute. */
  #locationChanged(after: KubeObject | undefined, before: KubeObject | undefined): void {
    if (after && before && specText(after) === specText(before)) return;
    const { name } = ((after ?? before) as KubeObject).metadata;
    for (const { metadata, spec } of this.#repositories.list()) {
      if (spec.backupStorageLocation === name) this.#controller.queue.add(keyOf(metadata));
    }
  }

  #jobOutlines(label: string) {
    return [...(this.#jobsOf.get(label) ?? [])].flatMap((key) => {
      const job = this.#jobs.get(refOf(key));
      return job ? [outlineOf(job)] : [];
    });
  }

  async #reconcile(key: string): Promise<Result | undefined> {
    let repository = this.#repositories.get(refOf(key));
    if (!repository || repository.metadata.deletionTimestamp !== undefined) return undefined;
    if (!isKept(repository)) return undefined;
    const location = await this.#location(repository);
    const connected = await this.#connections.reconcile(key, repository, location, this.#writer);
    ({ repository } = connected);
    const isReady = repository.status?.phase === 'Ready';
    const isStartable = isReady && location !== undefined && !isReadOnlyLocation(location);
    const jobs = this.#jobOutlines(repositoryLabelOf(repository.metadata.name));
    const frequencyNs = frequencyOf(repository, location);
    const restMs = await this.#keeper.reconcile(
      { key, repository, jobs, isStartable, frequencyNs },
      this.#writer,
    );
    return { requeueAfterMs: Math.min(restMs, connected.requeueAfterMs ?? Infinity) };
  }

  /** The cache may lack a location that was just created. */
  async #location({ metadata, spec }: BackupRepository): Promise<KubeObject | undefined> {
    const ref: ObjectRef = { namespace: metadata.namespace, name: spec.backupStorageLocation };
    const known = this.#locations.get(ref);
    if (known) return known;
    return this.#options.client.find(BACKUP_STORAGE_LOCATIONS, ref, { signal: this.#lead.signal });
  }

  /** Waits until the password exists. The first server creates it. */
  async #loadPassword(): Promise<void> {
    const { client, namespace, logger, connection } = this.#options;
    const { openStorage, directory, defaultCredentials } = connection;
    const signal = this.#lead.signal;
    const assertLeading = (): void => this.#writer.assertLeading();
    let reason = '';
    let isLater = true;
    const tell = (why: string): Promise<void> => this.#tellWaiting(why);
    while (isLater && !signal.aborted) {
      const look = async (): Promise<void> => {
        const outcome = await ensurePasswordSecret({
          client,
          namespace,
          signal,
          assertLeading,
          openStorage,
          directory,
          defaultCredentials,
        });
        isLater = outcome.state === 'later';
        if (outcome.state === 'later' && outcome.why !== reason) {
          reason = outcome.why;
          const fields = { secret: PASSWORD_SECRET, reason };
          const level = outcome.unreadLocation === undefined ? 'info' : 'warn';
          logger[level](fields, 'the password is created later');
        }
        if (outcome.state === 'random') {
          logger.info(
            { secret: `${namespace}/${PASSWORD_SECRET}` },
            'created a random password for all repositories: keep a copy of this Secret outside of the cluster; without it no volume can be restored',
          );
        }
        if (outcome.state === 'later') await tell(outcome.why);
        await this.#notePassword();
      };
      await this.#untilDone(PASSWORD_RETRY_MS, look, tell);
      // A location may be created at any time, and a backup right after it.
      const ms = this.#locations.list().length === 0 ? PASSWORD_RETRY_MS : UNREAD_MS;
      if (isLater) await sleep(ms, undefined, { signal }).catch(() => undefined);
    }
  }

  /**
   * Writes the reason into repositories that wait for the password. Ready repositories stay ready.
   */
  async #tellWaiting(why: string): Promise<void> {
    const message = redactAndCut(`the repository waits for its password: ${why}`);
    for (const repository of this.#repositories.list()) {
      const { status, metadata } = repository;
      const { phase = '' } = status ?? {};
      if (!isKept(repository) || phase === 'Ready' || status?.message === message) continue;
      try {
        await this.#writer.update(repository, (draft) => {
          draft.status = { ...draft.status, phase: phase === '' ? 'New' : phase, message };
        });
      } catch (error) {
        // The next attempt writes the reason.
        if (this.#lead.signal.aborted || isCode(error, 'LEADERSHIP_LOST')) throw error;
        const fields = { repository: metadata.name, error: messageOf(error) };
        this.#options.logger.debug(fields, 'the reason of the wait could not be written');
      }
    }
  }

  /** Checks the password's Secret for changes, until aborted. */
  async #followPassword(): Promise<void> {
    const signal = this.#lead.signal;
    while (!signal.aborted) {
      await sleep(PASSWORD_MS, undefined, { signal }).catch(() => undefined);
      await this.#untilDone(PASSWORD_MS, async () => {
        if (!(await this.#notePassword())) return;
        const { logger } = this.#options;
        logger.info({ secret: PASSWORD_SECRET }, 'the password has changed; checking all');
        for (const { metadata } of this.#repositories.list()) {
          this.#controller.queue.add(keyOf(metadata));
        }
      });
    }
  }

  /** Returns whether the password changed. */
  async #notePassword(): Promise<boolean> {
    const { client, namespace } = this.#options;
    const ref = { namespace, name: PASSWORD_SECRET };
    const secret = await client.find(SECRETS, ref, { signal: this.#lead.signal });
    // Without a password nothing can be opened. Open repositories keep the last password.
    if (secret?.data?.[PASSWORD_KEY] === undefined) return false;
    const isWellKnown = passwordIn(secret, PASSWORD_KEY) === WELL_KNOWN_PASSWORD;
    if (isWellKnown && this.#isWellKnown !== true) {
      this.#options.logger.warn(
        { secret: `${namespace}/${PASSWORD_SECRET}` },
        `everybody knows the password of the repositories, Velero's default: whoever reads the bucket can read all volumes. ${WELL_KNOWN_REMEDY}`,
      );
    }
    this.#isWellKnown = isWellKnown;
    return this.#connections.notePassword(passwordVersionOf(secret));
  }

  async #untilDone(
    retryMs: number,
    task: () => Promise<void>,
    onFailure: (why: string) => Promise<void> = () => Promise.resolve(),
  ): Promise<void> {
    const signal = this.#lead.signal;
    while (!signal.aborted) {
      try {
        await task();
        this.#passwordFailure = undefined;
        return;
      } catch (error) {
        if (signal.aborted) return;
        this.#passwordFailure = messageOf(error);
        const fields = { error: this.#passwordFailure };
        this.#options.logger.warn(fields, "the password's Secret could not be read or made");
        await onFailure(this.#passwordFailure);
        await sleep(retryMs, undefined, { signal }).catch(() => undefined);
      }
    }
  }

  get isPasswordWellKnown(): boolean | undefined {
    return this.#isWellKnown;
  }

  *described(): Generator<DescribedRepository> {
    const nowNs = this.#options.client.clock.nowNs();
    for (const repository of this.#repositories.list()) {
      if (!isKept(repository)) continue;
      const location = this.#locations.get({
        namespace: repository.metadata.namespace,
        name: repository.spec.backupStorageLocation,
      });
      // Read-only repositories cannot be maintained.
      const isReadOnly = location !== undefined && isReadOnlyLocation(location);
      const { status } = repository;
      yield {
        name: repository.metadata.name,
        isReady: status?.phase === 'Ready',
        verification: verificationOf(repository),
        overdueSeconds: isReadOnly
          ? 0
          : overdueSeconds({ status, frequencyNs: frequencyOf(repository, location), nowNs }),
      };
    }
  }

  jobCounts(): { running: number; waiting: number } {
    return { running: this.#keeper.runningCount, waiting: this.#keeper.waitingCount };
  }
}

/**
 * Changes whenever the Secret is written or created, without using the password. A hash of this
 * text is on each BackupRepository, readable for many, and must not help to guess the password.
 */
export const passwordVersionOf = ({ metadata }: KubeObject): string =>
  `${metadata.uid}/${metadata.resourceVersion}`;

/** Only Velero handles restic repositories. */
const isKept = ({ spec }: BackupRepository): boolean => spec.repositoryType === 'kopia';

const specText = (object: KubeObject): string =>
  JSON.stringify((object as { spec?: unknown }).spec ?? null);

/** Keeps a Job small in memory: thousands of repositories may each have several. */
const outlined = ({ apiVersion, kind, metadata, status }: Job): Job => {
  const { name, namespace, uid, resourceVersion, creationTimestamp, labels } = metadata;
  const { succeeded, failed, completionTime, conditions } = status ?? {};
  return {
    ...(apiVersion !== undefined && { apiVersion }),
    ...(kind !== undefined && { kind }),
    metadata: {
      name,
      uid,
      resourceVersion,
      creationTimestamp,
      ...(namespace !== undefined && { namespace }),
      ...(labels && { labels }),
    },
    spec: { template: { spec: { containers: [] } } },
    status: {
      ...(succeeded !== undefined && { succeeded }),
      ...(failed !== undefined && { failed }),
      ...(completionTime !== undefined && { completionTime }),
      ...(conditions && { conditions }),
    },
  };
};
