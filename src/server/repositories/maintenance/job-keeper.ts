import {
  isCode,
  type Logger,
  messageOf,
  type Nanoseconds,
  rfc3339Seconds,
} from '../../../base/index.ts';
import {
  BACKUP_REPOSITORIES,
  type BackupRepository,
  DEPLOYMENTS,
  type Job,
  JOBS,
  type NewObject,
} from '../../../kube/index.ts';
import { annotate, type RepositoryWriter } from '../repository-writer.ts';
import type { RepositoryMetrics } from '../repository-metrics.ts';
import { isJobOf, jobNameOf, maintenanceJob, REPOSITORY_LABEL, repositoryLabelOf } from './job.ts';
import { type JobConfig, JobConfigSource, KEPT_JOBS } from './job-config.ts';
import {
  type Claim,
  CLAIM,
  claimOf,
  claimText,
  type JobOutline,
  outlineOf,
  timeOf,
} from './job-outline.ts';
import { PLACE_NS, START_NS, whyNotStarted } from './job-start-failure.ts';
import { dueTimeNs, planMaintenance, type Situation, type Step } from './maintenance-plan.ts';
import { addToHistory, entryOf, type HistoryEntry } from './result.ts';

export interface JobKeeperOptions {
  readonly logger: Logger;
  readonly namespace: string;
  readonly metrics: RepositoryMetrics;
  /** Velero's ConfigMap of maintenance Jobs. */
  readonly configMap: string | undefined;
  /** Limit of parallel Jobs, including the Jobs of Velero's server. */
  readonly jobsMax: number;
  /** This server's Deployment, the template of the Jobs. */
  readonly deployment: string;
  readonly command: readonly string[];
  readonly logLevel: string;
  readonly logFormat: string;
  /** Reconciles a repository now. */
  readonly wake: (key: string) => void;
}

/** Longest interval between checks, because the clock may be set. Velero: repoSyncPeriod. */
const RESYNC_MS = 300_000;

export interface Kept {
  readonly key: string;
  readonly repository: BackupRepository;
  /** From the cache. */
  readonly jobs: readonly JobOutline[];
  readonly isStartable: boolean;
  readonly frequencyNs: Nanoseconds;
}

/**
 * Runs maintenance in Jobs when it is due, up to a limit. The repository that waited longest is
 * first, and a repository never has two Jobs. All state that must survive is in the cluster: a
 * claim on the repository, the Jobs, and the history.
 */
export class JobKeeper {
  readonly #options: JobKeeperOptions;
  /** Keys of repositories with a Job, or about to get one. */
  readonly #running = new Set<string>();
  /** When each was due, by key of repositories that wait for a slot. */
  readonly #waiting = new Map<string, bigint>();

  readonly #configs: JobConfigSource;

  constructor(options: JobKeeperOptions) {
    this.#options = options;
    this.#configs = new JobConfigSource(options.namespace, options.configMap);
  }

  get runningCount(): number {
    return this.#running.size;
  }

  get waitingCount(): number {
    return this.#waiting.size;
  }

  /** Counts Jobs that earlier servers left running. Call it before anything is started. */
  count({ key, repository, jobs }: Pick<Kept, 'key' | 'repository' | 'jobs'>): void {
    if (claimOf(repository) || jobs.some(({ end }) => !end)) this.#running.add(key);
  }

  forget(key: string): void {
    this.#waiting.delete(key);
    this.#leave(key);
  }

  /** Returns the delay in ms until the next check. */
  async reconcile(kept: Kept, writer: RepositoryWriter): Promise<number> {
    const { key, repository, jobs } = kept;
    const situation = situationOf(kept, writer);
    let step = planMaintenance(situation);
    // The cache may have the claim already, and the Job not yet.
    if (step.kind === 'lost') step = await this.#planAgain(repository, situation, writer);
    switch (step.kind) {
      case 'note':
        this.#enter(key);
        await this.#note(repository, step.job, writer);
        break;
      case 'create':
        this.#enter(key);
        await this.#createAgain(repository, step.name, writer);
        break;
      case 'drop':
        await writer.update(repository, (draft) => annotate(draft, CLAIM, undefined));
        this.#leave(key);
        break;
      case 'record':
        await this.#record(repository, step.jobs, step.endsClaim, writer);
        if (step.endsClaim) this.#leave(key);
        break;
      case 'lost':
        await this.#fail(repository, 'the maintenance Job was deleted before it ended', writer);
        this.#leave(key);
        break;
      case 'wait':
        await this.#wait(kept, writer);
        break;
      case 'start':
        if (!(await this.#start(kept, situation, writer))) break;
        return RESYNC_MS;
      case 'rest':
        this.#leave(key);
        this.#waiting.delete(key);
        await this.#prune(repository, jobs, writer);
        if (step.forNs !== undefined) {
          return Math.min(RESYNC_MS, Math.max(1, Number(step.forNs / 1_000_000n)));
        }
    }
    return RESYNC_MS;
  }

  async #planAgain(
    repository: BackupRepository,
    situation: Situation,
    { client, signal }: RepositoryWriter,
  ): Promise<Step> {
    const { namespace } = this.#options;
    const { name = '' } = situation.claim ?? {};
    const job = await client.find(JOBS, { namespace, name }, { signal });
    return planMaintenance({
      ...situation,
      jobs: job && isJobOf(job, repository) ? [outlineOf(job)] : [],
    });
  }

  /**
   * Waits for a Job that is not over. A Job that does not start loses its slot after a while. Later
   * it loses its claim and is deleted, unless Velero's server created it.
   */
  async #wait({ key, repository, jobs }: Kept, writer: RepositoryWriter): Promise<void> {
    const { client, signal } = writer;
    const { namespace } = this.#options;
    const nowNs = client.clock.nowNs();
    const claim = claimOf(repository);
    const underWay = jobs.filter(({ uid, end }) => !end && (!claim || uid === claim.uid));
    let holdsPlace = underWay.length === 0;
    for (const job of underWay) {
      const sinceNs = nowNs - job.createdNs;
      const why =
        sinceNs < PLACE_NS ? undefined : await whyNotStarted(client, namespace, job, signal);
      if (why === undefined) holdsPlace = true;
      else if (sinceNs >= START_NS && job.isOurs) await this.#giveUp(repository, job, why, writer);
    }
    if (holdsPlace) this.#enter(key);
    else this.#leave(key);
  }

  /** Removes the claim before the Job: a process that starts just now sees that it is not named. */
  async #giveUp(
    repository: BackupRepository,
    { name, uid }: JobOutline,
    why: string,
    writer: RepositoryWriter,
  ): Promise<void> {
    const { namespace, logger } = this.#options;
    const { client, signal } = writer;
    if (claimOf(repository)) {
      const text = `the maintenance Job did not start within an hour, and was deleted: ${why}`;
      await this.#fail(repository, text, writer);
    }
    logger.warn({ repository: repository.metadata.name, job: name, why }, 'Job did not start');
    writer.assertLeading();
    const propagationPolicy = 'Background';
    await client.delete(JOBS, { namespace, name }, { uid, propagationPolicy, signal });
  }

  #enter(key: string): void {
    this.#running.add(key);
    this.#waiting.delete(key);
  }

  /** Gives the slot to the repository that has been due for the longest time. */
  #leave(key: string): void {
    if (!this.#running.delete(key)) return;
    let next: string | undefined;
    let earliest: bigint | undefined;
    for (const [waiting, dueNs] of this.#waiting) {
      if (earliest === undefined || dueNs < earliest) [next, earliest] = [waiting, dueNs];
    }
    if (next === undefined) return;
    this.#waiting.delete(next);
    this.#options.wake(next);
  }

  /** Returns whether a Job was started. */
  async #start(
    { key, repository }: Kept,
    situation: Situation,
    writer: RepositoryWriter,
  ): Promise<boolean> {
    if (!this.#running.has(key) && this.#running.size >= this.#options.jobsMax) {
      this.#waiting.set(key, dueTimeNs(situation));
      return false;
    }
    this.#enter(key);
    try {
      // The cache may lack a Job that another server has just created.
      const jobs = await this.#listJobs(repository, writer);
      if (planMaintenance({ ...situation, jobs }).kind !== 'start') {
        this.#options.wake(key);
        return false;
      }
      const name = jobNameOf(repository.metadata, Number(situation.nowNs / 1_000_000n));
      const job = await this.#build(repository, name, writer);
      if (!job) {
        this.#leave(key);
        return false;
      }
      const claimed = await writer.update(repository, (draft) => annotate(draft, CLAIM, name));
      await this.#create(claimed, job, writer);
      return true;
    } catch (error) {
      // The claim may have been written. The next reconcile that sees it takes the slot again.
      this.#leave(key);
      throw error;
    }
  }

  async #listJobs(
    { metadata: { namespace, name } }: BackupRepository,
    { client, signal }: RepositoryWriter,
  ): Promise<JobOutline[]> {
    const labelSelector = `${REPOSITORY_LABEL}=${repositoryLabelOf(name)}`;
    const jobs = await client.list(JOBS, { namespace, labelSelector, signal });
    return jobs.map(outlineOf);
  }

  /** Undefined if the Job cannot be built. The failure is recorded, and retried later. */
  async #build(
    repository: BackupRepository,
    name: string,
    writer: RepositoryWriter,
  ): Promise<NewObject<Job> | undefined> {
    const { namespace, deployment: deploymentName, command, logLevel, logFormat } = this.#options;
    const { client, signal } = writer;
    try {
      const config = await this.#config(repository, writer);
      const ref = { namespace, name: deploymentName };
      const deployment = await client.get(DEPLOYMENTS, ref, { signal });
      return maintenanceJob({ name, repository, deployment, config, command, logLevel, logFormat });
    } catch (error) {
      if (!isCode(error, 'BAD_CONFIG', 'KUBE_NOT_FOUND', 'KUBE_FORBIDDEN')) throw error;
      await this.#failedToStart(repository, error, writer);
      return undefined;
    }
  }

  #config(repository: BackupRepository, { client, signal }: RepositoryWriter): Promise<JobConfig> {
    return this.#configs.load(client, repository, signal);
  }

  /** For a server that died between the claim and the Job. */
  async #createAgain(
    repository: BackupRepository,
    name: string,
    writer: RepositoryWriter,
  ): Promise<void> {
    const { client, signal } = writer;
    const now = await client.find(BACKUP_REPOSITORIES, repository.metadata, { signal });
    const claim = now && claimOf(now);
    if (!now || claim?.name !== name || claim.uid !== undefined) return;
    const job = await this.#build(now, name, writer);
    if (job) await this.#create(now, job, writer);
  }

  async #create(
    claimed: BackupRepository,
    job: NewObject<Job>,
    writer: RepositoryWriter,
  ): Promise<void> {
    const { client, signal } = writer;
    const { logger, namespace } = this.#options;
    let created: Job;
    writer.assertLeading();
    try {
      created = await client.create(JOBS, job, { signal });
    } catch (error) {
      const { name = '' } = job.metadata;
      if (isCode(error, 'KUBE_ALREADY_EXISTS')) {
        created = await client.get(JOBS, { namespace, name }, { signal });
        // A foreign Job has this name: the next reconcile starts over with another name.
        if (!isJobOf(created, claimed)) {
          await writer.update(claimed, (draft) => annotate(draft, CLAIM, undefined));
          return;
        }
      } else {
        // The API server rejects the Job. Other errors are retried under the same name.
        if (!isCode(error, 'KUBE_INVALID', 'KUBE_FORBIDDEN', 'KUBE_REFUSED')) throw error;
        await this.#failedToStart(claimed, error, writer);
        return;
      }
    }
    const repository = claimed.metadata.name;
    logger.info({ repository, job: created.metadata.name }, 'maintenance started');
    await this.#note(claimed, outlineOf(created), writer);
  }

  async #note(
    repository: BackupRepository,
    { name, uid }: JobOutline,
    writer: RepositoryWriter,
  ): Promise<void> {
    const claim: Claim = { name, uid };
    await writer.update(repository, (draft) => annotate(draft, CLAIM, claimText(claim)));
  }

  async #record(
    repository: BackupRepository,
    jobs: readonly JobOutline[],
    endsClaim: boolean,
    writer: RepositoryWriter,
  ): Promise<void> {
    const { client, signal } = writer;
    const { namespace } = this.#options;
    const entries: HistoryEntry[] = [];
    for (const job of jobs) entries.push(await entryOf(client, namespace, job, signal));
    await this.#write(repository, entries, endsClaim, writer);
  }

  #failedToStart(
    repository: BackupRepository,
    error: unknown,
    writer: RepositoryWriter,
  ): Promise<void> {
    return this.#fail(
      repository,
      `Failed to start maintenance job, err: ${messageOf(error)}`,
      writer,
    );
  }

  async #fail(
    repository: BackupRepository,
    message: string,
    writer: RepositoryWriter,
  ): Promise<void> {
    const startTimestamp = rfc3339Seconds(writer.client.clock.nowNs());
    await this.#write(repository, [{ result: 'Failed', startTimestamp, message }], true, writer);
  }

  /** Writes history, time and claim together, so that each end is recorded once. */
  async #write(
    repository: BackupRepository,
    entries: readonly HistoryEntry[],
    endsClaim: boolean,
    writer: RepositoryWriter,
  ): Promise<void> {
    const written = await writer.update(repository, (draft) => {
      if (endsClaim) annotate(draft, CLAIM, undefined);
      draft.status = {
        ...draft.status,
        recentMaintenance: addToHistory(draft.status?.recentMaintenance ?? [], entries),
      };
      for (const { result, completeTimestamp, startTimestamp } of entries) {
        if (result !== 'Succeeded') continue;
        const last = timeOf(draft.status.lastMaintenanceTime);
        const end = completeTimestamp ?? startTimestamp;
        // The claimed Job is always the last run. Other Jobs may be older.
        if (endsClaim || last === undefined || (timeOf(end) ?? 0n) > last) {
          draft.status.lastMaintenanceTime = end;
        }
      }
    });
    for (const entry of entries) this.#tell(written, entry, writer);
  }

  #tell(repository: BackupRepository, entry: HistoryEntry, { events }: RepositoryWriter): void {
    const { logger, metrics } = this.#options;
    const { name } = repository.metadata;
    const { result, message = '' } = entry;
    metrics.ended(name, entry);
    if (result === 'Succeeded') {
      logger.info({ repository: name, message }, 'maintenance succeeded');
      events.record(repository, 'MaintenanceSucceeded', message === '' ? 'done' : message);
    } else {
      logger.warn({ repository: name, message }, 'maintenance failed');
      events.record(repository, 'MaintenanceFailed', message, 'Warning');
    }
  }

  /** Deletes ended Jobs beyond the number to keep. Failures are logged and retried. */
  async #prune(
    repository: BackupRepository,
    jobs: readonly JobOutline[],
    writer: RepositoryWriter,
  ): Promise<void> {
    const ended = jobs
      .filter(({ end }) => end)
      .sort((a, b) => (a.createdNs < b.createdNs ? -1 : 1));
    if (ended.length === 0) return;
    const { namespace, logger } = this.#options;
    try {
      const config = await this.#config(repository, writer).catch((error: unknown): JobConfig => {
        if (!isCode(error, 'BAD_CONFIG')) throw error;
        return {};
      });
      const kept = config.keepLatestMaintenanceJobs ?? KEPT_JOBS;
      for (const { name, uid } of ended.slice(0, Math.max(0, ended.length - kept))) {
        writer.assertLeading();
        const { signal } = writer;
        const propagationPolicy = 'Background';
        await writer.client.delete(JOBS, { namespace, name }, { uid, propagationPolicy, signal });
      }
    } catch (error) {
      if (writer.signal.aborted || isCode(error, 'LEADERSHIP_LOST')) throw error;
      logger.warn({ error: messageOf(error) }, 'old maintenance Jobs could not be deleted');
    }
  }
}

const situationOf = (
  { repository, jobs, isStartable, frequencyNs }: Kept,
  { client }: RepositoryWriter,
): Situation => ({
  claim: claimOf(repository),
  jobs,
  status: repository.status,
  frequencyNs,
  isStartable,
  nowNs: client.clock.nowNs(),
});
