import { describeNotSet, newRestoreCounters, type RestoreCounters } from '../uploader/index.ts';
import { type ProgressWatch, type Sample, watchProgress } from './progress.ts';
import type { VolumeMoveOptions } from './volume.ts';

/** Attributes that restored entries lack, for users. */
export interface LackingAttributes {
  readonly note?: string | undefined;
  readonly firstLacking: readonly string[];
}

type MoveOptions = Omit<VolumeMoveOptions, 'config'>;

/** Progress of a restore, and the cause of a wait. */
export class RestoreProgress {
  readonly counters: RestoreCounters = newRestoreCounters();
  /** Size of the snapshot; undefined until it has been read. */
  totalBytes: number | undefined;
  readonly watch: ProgressWatch;
  #isAsking = false;

  /** `movedBeside`: steps that are not in the counters. */
  constructor(options: MoveOptions, movedBeside: () => number = () => 0) {
    this.watch = watchProgress(options, () => this.#sample(options, movedBeside()));
  }

  /** A sentence about missing attributes of restored entries; undefined if none is missing. */
  get note(): string | undefined {
    const { attributesNotSet } = this.counters;
    const { entries } = attributesNotSet;
    if (entries === 0) return undefined;
    return `${entries} ${entries === 1 ? 'entry lacks' : 'entries lack'} attributes that the volume does not let a restore set: ${describeNotSet(attributesNotSet)}`;
  }

  /** The first entries that lack attributes, for an Event. */
  get firstLacking(): readonly string[] {
    return this.counters.attributesNotSet.first.map(({ path, what }) => `${path} (${what})`);
  }

  /** Waits for an answer from outside. The volume does not count as stalled meanwhile. */
  async ask(question: Promise<void> | undefined): Promise<void> {
    this.#isAsking = true;
    await question;
    this.#isAsking = false;
  }

  #sample({ repository }: MoveOptions, movedBeside: number): Sample {
    const { bytes, files, directories, symlinks, skipped, errors, isFlushing } = this.counters;
    const moved = bytes + files + directories + symlinks + skipped + errors;
    return {
      doneBytes: Math.min(bytes, this.totalBytes ?? 0),
      totalBytes: this.totalBytes,
      moved: moved + repository.tasksDone + movedBeside,
      answers: repository.answers,
      // Other questions have a shorter limit of their own.
      waitsFor: isFlushing
        ? 'disk'
        : this.#isAsking || repository.isWaitingForStorage
          ? 'storage'
          : 'volume',
    };
  }
}
