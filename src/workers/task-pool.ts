import type { Arena, HashProgress, Span, SplitterSpec } from '../codec/index.ts';
import type {
  DirectoryComparison,
  DirectoryListing,
  ExtraRules,
  FileAttributes,
  FileRead,
  FileToRead,
  NotSet,
  OpenItem,
  OpenResult,
  PackedStream,
  PartialSpans,
  FileRange,
  RangeToCompare,
  RangeVerdicts,
  SealedItem,
  SealItem,
  ThreadPool,
  SpecialNode,
  BytePath,
} from '../volume-files/index.ts';
import {
  packCompared,
  packFilesToRead,
  packOpenItems,
  packSealItems,
  unpackFileReads,
  unpackSealed,
} from './messages.ts';
import type { ExtraQuestion, TaskCall, TaskName, TaskParameters, TaskResult } from './protocol.ts';

/** Files in one message to a thread. Our choice. */
const QUESTIONS_MAX = 64;

interface AskedExtra {
  readonly question: ExtraQuestion;
  readonly resolve: (hasExtra: boolean) => void;
  readonly reject: (error: unknown) => void;
}

/** Turns the methods of the contract into tasks by name. */
export abstract class TaskPool implements ThreadPool {
  readonly arena: Arena;
  /** Questions of this event loop turn: one message for many takes half of the time. */
  #asked: AskedExtra[] = [];
  abstract readonly threads: number;
  abstract readonly tasksDone: number;
  protected abstract perform(call: TaskCall): Promise<TaskResult<TaskName>>;
  abstract close(): Promise<void>;

  constructor(arena: Arena) {
    this.arena = arena;
  }

  /** Both sides hold the same table of tasks, and an answer has its call's id. */
  async #run<K extends TaskName>(
    task: K,
    ...parameters: TaskParameters<K>
  ): Promise<TaskResult<K>> {
    return await this.perform({ task, parameters } as TaskCall);
  }

  hash(messages: readonly (readonly Span[])[]): Promise<Uint8Array[]> {
    return this.#run('hash', messages);
  }

  hashPartly(messages: readonly PartialSpans[]): Promise<HashProgress[]> {
    return this.#run('hashPartly', messages);
  }

  cut(spec: SplitterSpec, piece: Span, count: number): Promise<number[]> {
    return this.#run('cut', spec, piece, count);
  }

  async seal(items: readonly SealItem[], address: number): Promise<SealedItem[]> {
    return unpackSealed(await this.#run('seal', packSealItems(items), address));
  }

  async readFiles(files: readonly FileToRead[], slab: Span): Promise<FileRead[]> {
    return unpackFileReads(await this.#run('readFiles', packFilesToRead(files), slab));
  }

  readDirectory(
    path: string | Uint8Array,
    entriesMax: number,
    rules?: ExtraRules,
  ): Promise<DirectoryListing> {
    return this.#run('readDirectory', path, entriesMax, rules);
  }

  lookAt(
    path: string | Uint8Array,
    names: Uint8Array,
    rules?: ExtraRules,
  ): Promise<DirectoryListing> {
    return this.#run('lookAt', path, names, rules);
  }

  compareDirectory(
    path: string | Uint8Array,
    before: PackedStream,
    special: readonly string[],
    entriesMax: number,
    rules?: ExtraRules,
  ): Promise<DirectoryComparison> {
    return this.#run('compareDirectory', path, before, special, entriesMax, rules);
  }

  compareRanges(
    ranges: readonly RangeToCompare[],
    slab: Span,
    ahead: readonly FileRange[],
  ): Promise<RangeVerdicts> {
    return this.#run('compareRanges', packCompared(ranges, ahead), slab);
  }

  open(items: readonly OpenItem[]): Promise<OpenResult> {
    return this.#run('open', packOpenItems(items));
  }

  setAttributes(
    descriptor: number,
    { mode, uid, gid, mtimeNs, extra, dropsLists, isExact }: FileAttributes,
    isLink: boolean,
  ): Promise<NotSet> {
    const attributes = { mode, uid, gid, mtimeNs, extra, dropsLists, isExact };
    return this.#run('setAttributes', descriptor, attributes, isLink);
  }

  makeNode(path: BytePath, node: SpecialNode): Promise<boolean> {
    return this.#run('makeNode', path, node);
  }

  readExtraOf(descriptor: number): Promise<string | undefined> {
    return this.#run('readExtraOf', descriptor);
  }

  hasExtra(descriptor: number, extra: string | undefined, isExact: boolean): Promise<boolean> {
    return new Promise((resolve, reject) => {
      this.#asked.push({ question: [descriptor, extra, isExact], resolve, reject });
      if (this.#asked.length === 1) setImmediate(() => this.#ask());
    });
  }

  #ask(): void {
    const asked = this.#asked;
    this.#asked = [];
    for (let at = 0; at < asked.length; at += QUESTIONS_MAX) {
      this.#askBatch(asked.slice(at, at + QUESTIONS_MAX));
    }
  }

  #askBatch(batch: readonly AskedExtra[]): void {
    const questions = batch.map(({ question }) => question);
    this.#run('hasExtra', questions).then(
      (answers) => {
        for (const [i, { resolve }] of batch.entries()) resolve(answers[i] === true);
      },
      (error: unknown) => {
        // Perhaps only one question failed, so repeat each alone.
        for (const asked of batch) {
          if (batch.length > 1) this.#askBatch([asked]);
          else asked.reject(error);
        }
      },
    );
  }

  syncFilesystem(descriptor: number): Promise<boolean> {
    return this.#run('syncFilesystem', descriptor);
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}
