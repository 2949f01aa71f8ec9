import { setTimeout as sleep } from 'node:timers/promises';
import type { BackupLog } from '../../../backup/index.ts';
import { isCode, namedFirst } from '../../../base/index.ts';
import { isRunning, type Round } from '../../../item-operations/index.ts';
import {
  DATA_DOWNLOADS,
  type DataDownload,
  inPlaceOrderOf,
  isInPlace,
  isMovementOver,
  isNew,
  type KubeClient,
} from '../../../kube/index.ts';
import { isInPlaceOperation, isWaitNote } from '../../../plugin/index.ts';
import type { StartedRestoreOperation, VolumesInPlace } from '../../../restore/index.ts';

export interface RestoredInPlaceOptions {
  readonly client: Pick<KubeClient, 'collect' | 'find'>;
  /** Namespace of the DataDownloads. */
  readonly namespace: string;
  /** Time limit for DataDownloads of other restores. */
  readonly timeoutMs: number;
  /** Polls all operations of the restore, and ends them if they time out. */
  readonly poll: () => Promise<Pick<Round, 'operations'>>;
  /** Runs a wait. Other restores may run meanwhile. */
  readonly whileWaiting: (task: () => Promise<void>) => Promise<void>;
  readonly log: Pick<BackupLog, 'info'>;
  readonly signal: AbortSignal;
  readonly pollMs?: number | undefined;
  /** {@link LOOK_MS}; shorter in tests. */
  readonly lookMs?: number;
}

/** Data movers report no more often. Our choice. */
const POLL_MS = 2000;
/**
 * Age limit for a list of other DataDownloads. The start of a later DataDownload checks for pods,
 * and finds them. Our choice.
 */
const LOOK_MS = 60_000;
/**
 * Looks at a DataDownload without an agent: five minutes. A later agent finds the pods, and does
 * not begin. Our choice.
 */
const UNCLAIMED_LOOKS = 150;
/** Claims that a message names. */
const NAMED_MAX = 5;

type Claim = Pick<StartedRestoreOperation['item'], 'namespace' | 'name'>;

/** A DataDownload that writes into the volume of a claim, or will. */
interface Writer {
  readonly name: string;
  readonly uid: string;
  readonly claim: Claim;
  readonly isUnclaimed: boolean;
}

/**
 * Volumes that are restored in place by the operations of this restore, in any try. Also covers
 * DataDownloads of others: another Restore, `longshore restore in-place`, or an operation of this
 * Restore that was never noted.
 */
export class RestoredInPlace implements VolumesInPlace {
  readonly #options: RestoredInPlaceOptions;
  /** Keys are IDs of operations. */
  readonly #open = new Map<string, Claim>();
  readonly #failed = new Map<string, Claim[]>();
  /**
   * Namespaces with a volume in place, and refused claims. Both in one namespace would mix data of
   * two times.
   */
  readonly #begun = new Set<string>();
  readonly #refused = new Map<string, Claim[]>();
  /** The last reported reason why an operation waits. Keys are claims. */
  readonly #told = new Map<string, string>();
  #writers: readonly Writer[] = [];
  /** UIDs of DataDownloads that no agent has taken. If one begins after all, it counts again. */
  readonly #givenUp = new Set<string>();
  #lookedMs = -Infinity;

  constructor(options: RestoredInPlaceOptions) {
    this.#options = options;
  }

  note(operations: readonly StartedRestoreOperation[]): void {
    for (const { operationId, item } of operations) {
      if (!isInPlaceOperation(operationId)) continue;
      this.#open.set(operationId, item);
      this.#begun.add(item.namespace);
    }
  }

  /** Notes a claim that is neither created nor restored in place. */
  noteRefused({ namespace, name }: Claim): void {
    this.#refused.set(namespace, [...(this.#refused.get(namespace) ?? []), { namespace, name }]);
  }

  async settled(namespace: string): Promise<void> {
    const { log } = this.#options;
    if (this.#open.size > 0) {
      await this.#wait([...this.#open.values()], () => this.#untilSettled());
      log.info('volumes are settled, and the restore goes on');
    }
    // During this wait, other restores run and may begin more.
    while (!this.#failed.has(namespace)) {
      const writers = await this.#writersOf(namespace);
      if (writers.length === 0) return;
      await this.#wait(
        writers.map(({ claim }) => claim),
        () => this.#untilWritten(writers),
      );
    }
  }

  async #wait(claims: readonly Claim[], task: () => Promise<void>): Promise<void> {
    const { log, whileWaiting } = this.#options;
    const names = namesOf(claims);
    log.info(`what may use volumes waits until these are brought back in place: ${names}`);
    await whileWaiting(task);
    this.#lookedMs = -Infinity;
  }

  async #writersOf(namespace: string): Promise<readonly Writer[]> {
    const { client, namespace: where, signal, lookMs = LOOK_MS } = this.#options;
    if (performance.now() - this.#lookedMs >= lookMs) {
      const askedMs = performance.now();
      try {
        this.#writers = await client.collect(
          DATA_DOWNLOADS,
          { namespace: where, signal },
          writersOf,
        );
      } catch (error) {
        // A cluster without the definition has none.
        if (!isCode(error, 'KUBE_NOT_FOUND')) throw error;
        this.#writers = [];
      }
      this.#lookedMs = askedMs;
    }
    return this.#writers.filter(
      ({ uid, claim, isUnclaimed }) =>
        claim.namespace === namespace && !(isUnclaimed && this.#givenUp.has(uid)),
    );
  }

  /** Waits for the end of all writers, and notes the failed ones. */
  async #untilWritten(writers: readonly Writer[]): Promise<void> {
    const { client, namespace, signal, timeoutMs, log, pollMs = POLL_MS } = this.#options;
    const sinceMs = performance.now();
    let left = writers;
    for (let looks = 1; ; looks++) {
      const next: Writer[] = [];
      for (const writer of left) {
        signal.throwIfAborted();
        const { name, uid, claim } = writer;
        const found = await client.find(DATA_DOWNLOADS, { namespace, name }, { signal });
        // A deleted DataDownload did not report success.
        if (found?.metadata.uid !== uid) this.#noteFailed(claim);
        else if (looks > UNCLAIMED_LOOKS && isUnclaimed(found)) {
          this.#givenUp.add(uid);
          log.info(
            `${namesOf([claim])} is not waited for any longer: no node-agent has taken up DataDownload ${name}`,
          );
        } else if (writersOf(found).length > 0) next.push(writer);
        else if (neverBegins(found)) continue;
        else if (found.status?.phase !== 'Completed') this.#noteFailed(claim);
      }
      left = next;
      if (left.length === 0) return;
      if (performance.now() - sinceMs > timeoutMs) {
        for (const { claim } of left) this.#noteFailed(claim);
        return;
      }
      await sleep(pollMs, undefined, { signal });
    }
  }

  #noteFailed(claim: Claim): void {
    this.#failed.set(claim.namespace, [...(this.#failed.get(claim.namespace) ?? []), claim]);
  }

  /** Logs why an operation has not begun, whenever the reason changes. */
  #tellWait(claim: Claim, description: string): void {
    const name = namesOf([claim]);
    if (!isWaitNote(description) || this.#told.get(name) === description) return;
    this.#told.set(name, description);
    this.#options.log.info(`${name} is not brought back yet: its operation ${description}`);
  }

  async #untilSettled(): Promise<void> {
    const { poll, signal, pollMs = POLL_MS } = this.#options;
    for (;;) {
      signal.throwIfAborted();
      for (const operation of (await poll()).operations) {
        const claim = this.#open.get(operation.spec.operationID);
        if (!claim) continue;
        if (isRunning(operation)) {
          this.#tellWait(claim, operation.status.description ?? '');
          continue;
        }
        this.#open.delete(operation.spec.operationID);
        if (operation.status.phase === 'Completed') continue;
        this.#noteFailed(claim);
      }
      if (this.#open.size === 0) return;
      await sleep(pollMs, undefined, { signal });
    }
  }

  problemOf(namespace: string): string | undefined {
    const failed = this.#failed.get(namespace);
    if (!failed) return this.#mixtureOf(namespace);
    const some = failed.length === 1 ? 'a volume of it was' : 'volumes of it were';
    return `what may use volumes is not restored in namespace ${namespace}, since ${some} not brought back whole: ${namesOf(failed)}; restore the backup again, which goes on with them`;
  }

  #mixtureOf(namespace: string): string | undefined {
    const refused = this.#refused.get(namespace);
    if (!refused || !this.#begun.has(namespace)) return undefined;
    return `what may use volumes is not restored in namespace ${namespace}, since volumes of it were brought back and others were not, so that they are of different times: ${namesOf(refused)}; mend what the errors about these say, and restore the backup again`;
  }
}

function writersOf(download: DataDownload): Writer[] {
  const { metadata, spec, status } = download;
  if (!isInPlace(download) || isMovementOver(status?.phase)) return [];
  const { namespace, pvc } = spec.targetVolume;
  if (isOnlyLook(download) || neverBegins(download)) return [];
  const claim = { namespace, name: pvc };
  const { name, uid } = metadata;
  return [{ name, uid, claim, isUnclaimed: isUnclaimed(download) }];
}

/** No agent has begun it or set its finalizer. An agent without a free place sets the finalizer. */
const isUnclaimed = ({ metadata, status }: DataDownload): boolean =>
  isNew(status?.phase) && (metadata.finalizers ?? []).length === 0;

/** Canceled before an agent took it: the agent then only records the cancel. */
const neverBegins = ({ spec, status }: DataDownload): boolean =>
  isNew(status?.phase) && spec.cancel === true;

function isOnlyLook(download: DataDownload): boolean {
  try {
    return inPlaceOrderOf(download)?.dryRun === true;
  } catch {
    // An agent will refuse it soon.
    return false;
  }
}

const namesOf = (claims: readonly Claim[]): string =>
  namedFirst(claims, NAMED_MAX, ({ namespace, name }) => `${namespace}/${name}`);
