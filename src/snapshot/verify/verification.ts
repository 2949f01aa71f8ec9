import {
  BoundedList,
  type Logger,
  messageOf,
  MINUTE_NS,
  type Nanoseconds,
  Stopwatch,
} from '../../base/index.ts';
import {
  DamagedContents,
  isSampled,
  loadVerification,
  type PackSample,
  type Problem,
  putVerification,
  remainingDamage,
  type Repository,
  type VerificationRecord,
  verifyContents,
  type VerifyCounters,
} from '../../repository/index.ts';
import { type DamageSearchResult, searchDamage } from './damage-search.ts';
import { listReadableSnapshots, type Snapshot } from '../snapshot-manifest.ts';
import { PROBLEMS_MAX, type TreeCounters, verifyTrees } from './verify.ts';

/** How often findings are recorded. Our choice: a killed run repeats this much reading. */
const SAVE_EVERY_NS = 15n * MINUTE_NS;

export interface VerificationOptions {
  /**
   * Share of the packs to read, from 0 to 1. The next run continues where this run ends. Undefined
   * means none, or all with `readAll`.
   */
  readonly share?: number | undefined;
  readonly readAll?: boolean;
  /** After this time the run starts no more packs, except the first, so that it makes progress. */
  readonly budgetNs?: Nanoseconds | undefined;
  /** Where the sample starts if no position is or can be recorded: the end of the previous run. */
  readonly position?: number | undefined;
  /** Whether to record findings, so that the next backups use them. */
  readonly record: boolean;
  readonly signal: AbortSignal;
  readonly logger: Logger;
  readonly counters: VerifyCounters;
  readonly treeCounters: TreeCounters;
  readonly onProblem?: () => void;
}

export interface VerificationProblem {
  /** A stable code for scripts. */
  readonly code:
    Problem['code'] | 'DAMAGED_SNAPSHOT' | 'DAMAGED_MANIFESTS' | 'DAMAGED_INDEX' | 'DAMAGED_OBJECT';
  readonly message: string;
  readonly blobId?: string;
  readonly contentId?: string;
  readonly object?: string;
}

export interface VerificationReport {
  readonly snapshots: number;
  readonly problems: BoundedList<VerificationProblem>;
  readonly problemsNotListed: number;
  /** Damaged, undeleted contents, including findings of earlier runs. */
  readonly damagedContents: number;
  readonly damagedPacks: number;
  /** Snapshots affected by the damage. */
  readonly concerned: DamageSearchResult;
  /** Share of all packs that was read, and where the next sample starts. */
  readonly readShare: number;
  readonly position: number | undefined;
  readonly record: 'unchanged' | 'written' | 'failed' | 'off';
}

const ALL: PackSample = { position: 0, share: 1 };
const NOTHING: DamageSearchResult = { damaged: [], notNamed: 0 };

/**
 * Verifies a repository. Checks presence and length of all packs by a listing. Reads all packs or a
 * sample, and checks all snapshots or a sample. Records damage in the repository. Then backups do
 * not rely on damaged contents, and store them again if the volumes still have them. Throws
 * `CANCELED` after recording the findings, and storage errors.
 */
export async function verifyRepository(
  repository: Repository,
  options: VerificationOptions,
): Promise<VerificationReport> {
  return new Verification(repository, options).run();
}

class Verification {
  readonly #repository: Repository;
  readonly #options: VerificationOptions;
  readonly #problems = new BoundedList<VerificationProblem>(PROBLEMS_MAX);
  readonly #found = new DamagedContents();
  /** Packs that were damaged before and were read again. */
  readonly #rechecked = new Set<string>();
  /** Packs that were damaged before and could not be read now. Their old findings stay. */
  readonly #unread = new Set<string>();
  readonly #sinceSaved: Stopwatch;
  #before: VerificationRecord = noRecord();
  /** Packs in {@link #before}, which is limited in size. */
  #knownPacks: ReadonlySet<string> = new Set();
  #position: number | undefined;
  #isSaving = false;

  constructor(repository: Repository, options: VerificationOptions) {
    this.#repository = repository;
    this.#options = options;
    this.#sinceSaved = new Stopwatch(repository.clock);
  }

  async run(): Promise<VerificationReport> {
    const { signal, share, readAll = false, budgetNs, counters, treeCounters } = this.#options;
    const snapshots = await this.#load();
    const isPartial = share !== undefined || budgetNs !== undefined;
    const sample = isPartial
      ? { position: this.#startPosition(), share: share ?? 1, budgetNs }
      : undefined;
    this.#position = this.#before.position;
    let readShare = 0;
    try {
      readShare = await verifyContents(this.#repository, {
        readAll,
        sample,
        signal,
        counters,
        recheck: this.#toRecheck(sample ?? (readAll ? ALL : undefined)),
        onRechecked: (pack) => this.#rechecked.add(pack),
        onProblem: (problem) => {
          this.#note(problem);
        },
        onPosition: (position) => this.#goOn(sample ? position : undefined),
      });
    } catch (error) {
      // Save the findings, so that a later run need not find them again.
      if (signal.aborted) await this.#save(this.#merged(0)).catch(() => undefined);
      throw error;
    }
    const from = sample?.position ?? 0;
    const merged = this.#merged(readShare, from);
    const { damaged, contents: damagedContents } = merged.isEmpty
      ? { damaged: merged, contents: 0 }
      : await remainingDamage(this.#repository, merged, signal);
    // From now on, this process must not rely on damaged contents either.
    this.#repository.contents.damaged.addAll(damaged);
    const looked = sample ? snapshots.filter(({ id }) => isIn(id, from, readShare)) : snapshots;
    const roots = looked.flatMap(({ rootEntry }) => rootEntry ?? []);
    const trees = await verifyTrees(this.#repository, roots, {
      readAll: false,
      signal,
      counters: treeCounters,
      arePacksChecked: true,
    });
    for (const { message, object } of trees.problems)
      this.#add({ code: 'DAMAGED_OBJECT', object, message });
    const isHurt = damagedContents > 0 || treeCounters.problemCount > 0;
    const concerned = isHurt ? await searchDamage(this.#repository, snapshots, signal) : NOTHING;
    return {
      snapshots: looked.length,
      problems: this.#problems,
      problemsNotListed: this.#problems.notHeld + trees.problemsNotListed,
      damagedContents,
      damagedPacks: damaged.packCount,
      concerned,
      readShare,
      position: this.#position,
      record: await this.#record(damaged),
    };
  }

  /** Reports unreadable parts of index and manifests. All other parts are still checked. */
  async #load(): Promise<Snapshot[]> {
    const { contents, manifests } = this.#repository;
    for (const { message } of contents.unreadableIndexes)
      this.#add({ code: 'DAMAGED_INDEX', message });
    for (const { message } of await manifests.loadUnreadable())
      this.#add({ code: 'DAMAGED_MANIFESTS', message });
    this.#before = await loadVerification(this.#repository);
    this.#knownPacks = new Set([...this.#before.damaged.packs()].map(([pack]) => pack));
    const { snapshots, damaged } = await listReadableSnapshots(this.#repository);
    for (const { message } of damaged) this.#add({ code: 'DAMAGED_SNAPSHOT', message });
    return snapshots;
  }

  /** Without recording, the caller must remember the position. */
  #startPosition(): number {
    const { position: recorded } = this.#before;
    const { position: given, record } = this.#options;
    return (record ? (recorded ?? given) : (given ?? recorded)) ?? 0;
  }

  /** Packs that were damaged before and that this run might not read otherwise. */
  #toRecheck(sample: PackSample | undefined): string[] {
    return [...this.#before.damaged.packs()].flatMap(([pack]) =>
      sample && sample.budgetNs === undefined && isSampled(pack, sample) ? [] : pack,
    );
  }

  #add(problem: VerificationProblem): void {
    this.#problems.add(problem);
    this.#options.onProblem?.();
  }

  #note(problem: Problem): void {
    const { code, blobId: packBlobId, contentId } = problem;
    if (code === 'UNREADABLE_CONTENT') {
      if (this.#knownPacks.has(packBlobId)) this.#unread.add(packBlobId);
    } else if (code === 'MISSING_PACK') this.#found.addPack(packBlobId);
    else this.#found.add({ packBlobId, contentId });
    this.#add(problem);
  }

  /** Current findings, plus earlier findings about packs that were not read now. */
  #merged(readShare: number, from = 0): DamagedContents {
    const merged = new DamagedContents();
    merged.addAll(this.#found);
    const { damaged: before } = this.#before;
    for (const [packBlobId, contentIds] of before.packs()) {
      const isRead =
        this.#rechecked.has(packBlobId) ||
        isSampled(packBlobId, { position: from, share: readShare });
      if (isRead && !this.#unread.has(packBlobId)) continue;
      if (contentIds.length === 0) merged.addPack(packBlobId);
      for (const contentId of contentIds) merged.add({ packBlobId, contentId });
    }
    return merged;
  }

  async #goOn(position: number | undefined): Promise<void> {
    if (position !== undefined) this.#position = position;
    if (this.#isSaving || this.#sinceSaved.elapsedNs < SAVE_EVERY_NS) return;
    this.#isSaving = true;
    await this.#save(this.#merged(0));
    this.#sinceSaved.restart();
    this.#isSaving = false;
  }

  async #record(damaged: DamagedContents): Promise<VerificationReport['record']> {
    if (!this.#options.record) return 'off';
    const { position, damaged: before } = this.#before;
    if (position === this.#position && isSame(before, damaged)) return 'unchanged';
    return (await this.#save(damaged)) ? 'written' : 'failed';
  }

  /** Returns false if it fails, because read-only storages are verified too. */
  async #save(damaged: DamagedContents): Promise<boolean> {
    if (!this.#options.record) return false;
    try {
      const what = { damaged, position: this.#position };
      // A concurrent run may have added a record. Both stay, and readers merge them.
      const ids = putVerification(this.#repository, this.#before, what);
      await this.#repository.flush();
      this.#repository.manifests.invalidate();
      this.#before = { ...this.#before, ids };
      return true;
    } catch (error) {
      const text = 'what was found could not be recorded; the next backup does not know of it';
      this.#options.logger.warn({ error: messageOf(error) }, text);
      return false;
    }
  }
}

const noRecord = (): VerificationRecord => ({
  damaged: new DamagedContents(),
  position: undefined,
  timeNs: undefined,
  ids: [],
});

/** Snapshot IDs are random, like pack names. */
const isIn = (id: string, position: number, share: number): boolean =>
  isSampled(`p${id}`, { position, share });

function isSame(a: DamagedContents, b: DamagedContents): boolean {
  const textOf = (damaged: DamagedContents): string =>
    JSON.stringify([
      damaged.hasMore,
      [...damaged.packs()].map(([pack, ids]) => [pack, ids.sort()] as const).sort(),
    ]);
  return textOf(a) === textOf(b);
}
