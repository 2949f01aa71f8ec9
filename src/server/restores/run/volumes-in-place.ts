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
  /** Of the DataDownloads. */
  readonly namespace: string;
  /** How long those of others are waited for. */
  readonly timeoutMs: number;
  /** Asks about all operations of the restore, and ends those whose time is over. */
  readonly poll: () => Promise<Pick<Round, 'operations'>>;
  /** Around the wait: other restores may go on meanwhile. */
  readonly whileWaiting: (task: () => Promise<void>) => Promise<void>;
  readonly log: Pick<BackupLog, 'info'>;
  readonly signal: AbortSignal;
  readonly pollMs?: number | undefined;
  /** {@link LOOK_MS}; less in tests. */
  readonly lookMs?: number;
}

/** Data movers report that often at most. Our choice. */
const POLL_MS = 2000;
/**
 * So old an answer about those of others may be: who begins one later looks for pods, and finds
 * them. Our choice.
 */
const LOOK_MS = 60_000;
/**
 * So often one is looked at that no agent has taken up: five minutes. Whoever takes it up later
 * finds the pods, and does not begin. Our choice.
 */
const UNCLAIMED_LOOKS = 150;
/** Claims that a message names. */
const NAMED_MAX = 5;

type Claim = Pick<StartedRestoreOperation['item'], 'namespace' | 'name'>;

/** A DataDownload that writes into the volume of a claim, or is about to. */
interface Writer {
  readonly name: string;
  readonly uid: string;
  readonly claim: Claim;
  readonly isUnclaimed: boolean;
}

/**
 * Volumes that a restore brings back in place, by their operations: those of this try and of
 * earlier ones. And those that anybody else brings back: another Restore, also one whose run is
 * over, `longshore restore in-place`, or an attempt of this one whose operation was not noted.
 */
export class RestoredInPlace implements VolumesInPlace {
  readonly #options: RestoredInPlaceOptions;
  /** By the ID of the operation. */
  readonly #open = new Map<string, Claim>();
  readonly #failed = new Map<string, Claim[]>();
  /**
   * Namespaces with one that is brought back, and claims that were refused: together they would be
   * of two times.
   */
  readonly #begun = new Set<string>();
  readonly #refused = new Map<string, Claim[]>();
  /** What was told of what an operation waits for, by claim. */
  readonly #told = new Map<string, string>();
  #writers: readonly Writer[] = [];
  /**
   * UIDs of DataDownloads that nobody has taken up for minutes; one that begins after all is waited
   * for again.
   */
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

  /** Of a claim that is neither made nor brought back. */
  noteRefused({ namespace, name }: Claim): void {
    this.#refused.set(namespace, [...(this.#refused.get(namespace) ?? []), { namespace, name }]);
  }

  async settled(namespace: string): Promise<void> {
    const { log } = this.#options;
    if (this.#open.size > 0) {
      await this.#wait([...this.#open.values()], () => this.#untilSettled());
      log.info('volumes are settled, and the restore goes on');
    }
    // While this one waits others go on, and may begin more.
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

  /** Whatever becomes of them: what is not whole is noted. */
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
        // One that was deleted meanwhile has not said that it is done.
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

  /** Why nobody has begun it, each time that this changes. */
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

/**
 * Nobody has begun it, and no agent has put its finalizer on it, as one does that has no place for
 * it yet.
 */
const isUnclaimed = ({ metadata, status }: DataDownload): boolean =>
  isNew(status?.phase) && (metadata.finalizers ?? []).length === 0;

/** Canceled before anybody took it up: an agent that finds it only says so. */
const neverBegins = ({ spec, status }: DataDownload): boolean =>
  isNew(status?.phase) && spec.cancel === true;

function isOnlyLook(download: DataDownload): boolean {
  try {
    return inPlaceOrderOf(download)?.dryRun === true;
  } catch {
    // An agent refuses it soon.
    return false;
  }
}

const namesOf = (claims: readonly Claim[]): string =>
  namedFirst(claims, NAMED_MAX, ({ namespace, name }) => `${namespace}/${name}`);
