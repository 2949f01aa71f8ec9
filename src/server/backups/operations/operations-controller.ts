import {
  HOUR_NS,
  isCode,
  type Logger,
  messageOf,
  type Nanoseconds,
  parseDuration,
  redactAndCut,
  rfc3339Seconds,
  SECOND_NS,
  Stopwatch,
} from '../../../base/index.ts';
import type { Backup } from '../../../backup/index.ts';
import type { OperationMap } from '../../../item-operations/index.ts';
import {
  Controller,
  EventRecorder,
  type KubeClient,
  keyOf,
  refOf,
  type Result,
} from '../../../kube/index.ts';
import type { ServerController } from '../../server.ts';
import { subjectOf } from '../after-run.ts';
import type { ActionSessions, Buckets, TimeoutOf } from '../contract.ts';
import { BACKUP_RESOURCE, isWaiting, phaseOf, statusOf } from '../phases.ts';
import type { SharedBackups, WatchedBackups } from '../shared-backups.ts';
import type { OperationMetrics } from './operation-metrics.ts';
import { operationsStep } from './operations-step.ts';
import { SessionAsker } from './session-asker.ts';

export interface OperationsControllerOptions {
  readonly client: KubeClient;
  readonly logger: Logger;
  readonly host: string;
  readonly backups: SharedBackups;
  /** The one that the backup controller, the finalizer and downloads use. */
  readonly map: OperationMap;
  readonly buckets: Buckets;
  readonly sessions: ActionSessions;
  /** Whether nothing may be written to a location at present. Asked for each backup and poll. */
  readonly isReadOnly?: (location: string, signal: AbortSignal) => Promise<boolean>;
  readonly scratch: string;
  readonly metrics?: OperationMetrics;
  /** `--item-operation-sync-frequency`. */
  readonly syncFrequencyMs?: number;
  /** `--default-item-operation-timeout`, for Backups that do not say. */
  readonly timeoutNs?: Nanoseconds;
  /** How much longer than operations may take a location may be away; less in tests. */
  readonly awayNs?: Nanoseconds;
  readonly timeoutNsOf?: TimeoutOf;
}

/** Velero: pkg/controller/backup_operations_controller.go, defaultBackupOperationsFrequency. */
const SYNC_MS = 10_000;
/** Velero: pkg/cmd/server/config, defaultItemOperationTimeout. */
const TIMEOUT_NS = 4n * HOUR_NS;
/** Backups looked at side by side: one with plugins that hang keeps one. Our choice. */
const WORKERS = 10;
/** Our choice. */
const AWAY_NS = HOUR_NS;

/** What this process knows of a Backup that waits. */
interface Known {
  readonly uid: string;
  readonly asker: SessionAsker;
  isReloaded: boolean;
  /** Since when its location is of no use, and what was said of it. */
  away: { readonly since: Stopwatch; said: string } | undefined;
}

/** Follows the operations of Backups that wait for them, until each is over. Velero's controller of that name. */
export class OperationsController implements ServerController {
  readonly name = 'backup-operations';
  readonly #options: OperationsControllerOptions;

  constructor(options: OperationsControllerOptions) {
    this.#options = options;
  }

  get failure(): string | undefined {
    return this.#options.backups.failure;
  }

  async run(signal: AbortSignal, assertLeading: () => void): Promise<void> {
    await using watched = await this.#options.backups.open(signal);
    await new OperationsRun(this.#options, watched, { signal, assertLeading }).run();
  }
}

/** One time that this process leads. */
class OperationsRun {
  readonly #options: OperationsControllerOptions;
  readonly #backups: WatchedBackups['cache'];
  readonly #signal: AbortSignal;
  readonly #assertLeading: () => void;
  readonly #controller: Controller;
  readonly #events: EventRecorder;
  /** By key. */
  readonly #known = new Map<string, Known>();

  constructor(
    options: OperationsControllerOptions,
    { cache }: WatchedBackups,
    { signal, assertLeading }: { signal: AbortSignal; assertLeading: () => void },
  ) {
    const { client, logger, host } = options;
    this.#options = options;
    this.#backups = cache;
    this.#signal = signal;
    this.#assertLeading = assertLeading;
    this.#events = new EventRecorder({
      ...{ client, logger, host, clock: client.clock },
      component: 'longshore-server',
    });
    this.#controller = new Controller({
      ...{ name: 'backup-operations', workers: WORKERS, logger },
      reconcile: (key) => this.#reconcile(key),
    });
  }

  async run(): Promise<void> {
    const working = this.#controller.run(this.#signal);
    this.#backups.onChange((after, before) => {
      const backup = after ?? before;
      if (!backup) return;
      const key = keyOf(backup.metadata);
      // Those that are over cost nothing; one that waits is looked at when it begins to, and then by time.
      const waits = after !== undefined && isWaiting(phaseOf(after));
      if (waits !== this.#known.has(key)) this.#controller.queue.add(key);
      if (!after) this.#options.map.forget(backup.metadata.uid);
    });
    await working;
    for (const key of [...this.#known.keys()]) await this.#leave(key);
    this.#options.metrics?.clear();
    await this.#events.flush();
  }

  async #reconcile(key: string): Promise<Result | undefined> {
    const backup = this.#backups.get(refOf(key));
    if (this.#known.get(key)?.uid !== backup?.metadata.uid) await this.#leave(key);
    if (!backup || !isWaiting(phaseOf(backup)) || backup.metadata.deletionTimestamp !== undefined) {
      await this.#leave(key);
      return undefined;
    }
    const { syncFrequencyMs = SYNC_MS, logger } = this.#options;
    const next = { requeueAfterMs: syncFrequencyMs };
    const known = this.#knownOf(key, backup);
    try {
      const location = backup.spec.storageLocation ?? '';
      if ((await this.#options.isReadOnly?.(location, this.#signal)) === true) {
        await this.#away(backup, known, `backup storage location ${location} is read-only`);
        return next;
      }
      const hasLeft = await this.#look(backup, known);
      known.away = undefined;
      if (!hasLeft) return next;
      await this.#leave(key);
      // Looked at again only where the watch brings another phase.
      return undefined;
    } catch (error) {
      if (this.#signal.aborted) throw error;
      if (isCode(error, ...OF_CLUSTER)) {
        logger.debug({ backup: backup.metadata.name, error: messageOf(error) }, 'asked again');
        return next;
      }
      await this.#away(backup, known, messageOf(error));
      return next;
    }
  }

  #knownOf(key: string, backup: Backup): Known {
    const known = this.#known.get(key);
    if (known) return known;
    const { sessions, logger } = this.#options;
    const asker = new SessionAsker(() => sessions.open(backup, logger));
    const uid = backup.metadata.uid;
    const made: Known = { uid, asker, isReloaded: false, away: undefined };
    this.#known.set(key, made);
    return made;
  }

  async #leave(key: string): Promise<void> {
    const known = this.#known.get(key);
    if (!known) return;
    this.#known.delete(key);
    this.#options.metrics?.forget(known.uid);
    await known.asker[Symbol.asyncDispose]();
  }

  /** Whether it waits no more. */
  async #look(backup: Backup, known: Known): Promise<boolean> {
    const { client, map, buckets, scratch, metrics, timeoutNsOf } = this.#options;
    const signal = this.#signal;
    if (!known.isReloaded) {
      // Another server may have led since this one last did.
      await map.reload(subjectOf(backup), signal);
      known.isReloaded = true;
    }
    const timeoutNs = this.#timeoutNs(backup);
    const { round, hasLeft } = await operationsStep(backup, {
      ...{ client, map, buckets, scratch, signal },
      asker: known.asker,
      timeoutNsOf: (action) => timeoutNsOf?.(action, backup, timeoutNs) ?? timeoutNs,
      assertLeading: this.#assertLeading,
    });
    metrics?.note(known.uid, round);
    return hasLeft;
  }

  #timeoutNs({ spec }: Backup): Nanoseconds {
    const { timeoutNs = TIMEOUT_NS } = this.#options;
    const asked = parseDuration(spec.itemOperationTimeout ?? '') ?? 0n;
    return asked > 0n ? asked : timeoutNs;
  }

  /**
   * Velero ends a backup whose location is missing or read-only for a moment; here its operations go on, and it is looked at again. After
   * the time that operations may take, and an hour, nobody would wait any more: then it ends by its CR alone.
   */
  async #away(backup: Backup, known: Known, text: string): Promise<void> {
    const { client, logger, map } = this.#options;
    const { name, namespace, uid, resourceVersion } = backup.metadata;
    const because = redactAndCut(text);
    known.away ??= { since: new Stopwatch(client.clock), said: '' };
    if (known.away.said !== because) {
      known.away.said = because;
      logger.warn({ backup: name, error: because }, 'operations of a backup cannot be followed');
      const message = `its operations cannot be followed, and it waits: ${because}`;
      this.#events.record(backup, 'OperationsNotFollowed', message, 'Warning');
    }
    const boundNs = this.#timeoutNs(backup) + (this.#options.awayNs ?? AWAY_NS);
    if (known.away.since.elapsedNs < boundNs) return;
    const subject = subjectOf(backup);
    await map.cancel(subject, { asker: known.asker, signal: this.#signal }).catch(() => undefined);
    const seconds = boundNs / SECOND_NS;
    this.#assertLeading();
    await client.patch(
      BACKUP_RESOURCE,
      { namespace, name },
      {
        metadata: { uid, resourceVersion },
        status: {
          phase: 'PartiallyFailed',
          errors: (statusOf(backup).errors ?? 0) + 1,
          failureReason: `its operations could not be followed for ${seconds} s: ${because}`,
          completionTimestamp: rfc3339Seconds(client.clock.nowNs()),
        },
      },
      { signal: this.#signal },
    );
    map.forget(uid);
  }
}

/** Of the API server, which says nothing about a location. */
const OF_CLUSTER = [
  'KUBE_UNAVAILABLE',
  'KUBE_THROTTLED',
  'KUBE_CONFLICT',
  'KUBE_GONE',
  'LEADERSHIP_LOST',
];
