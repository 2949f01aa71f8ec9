import { newRestoreCounters, type RestoreCounters } from '../uploader/index.ts';
import { type ProgressWatch, type Sample, watchProgress } from './progress.ts';
import type { VolumeMoveOptions } from './volume.ts';

type MoveOptions = Omit<VolumeMoveOptions, 'config'>;

/** What moves in a restore, and what it waits for. */
export class RestoreProgress {
  readonly counters: RestoreCounters = newRestoreCounters();
  /** Of the snapshot; undefined until it has been read. */
  totalBytes: number | undefined;
  readonly watch: ProgressWatch;
  #isAsking = false;

  /** `movedBeside`: what moves besides the counters. */
  constructor(options: MoveOptions, movedBeside: () => number = () => 0) {
    this.watch = watchProgress(options, () => this.#sample(options, movedBeside()));
  }

  /** Waits for an answer from outside, which the volume is not blamed for. */
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
      // Whoever is asked, this limit is longer than that takes.
      waitsFor: isFlushing
        ? 'disk'
        : this.#isAsking || repository.isWaitingForStorage
          ? 'storage'
          : 'volume',
    };
  }
}
