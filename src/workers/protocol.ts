import type { CodecKeys, HashProgress, Span, SplitterSpec } from '../codec/index.ts';
import type {
  BytePath,
  DirectoryComparison,
  DirectoryListing,
  ExtraRules,
  FileAttributes,
  NotSet,
  OpenResult,
  PackedStream,
  PartialSpans,
  RangeVerdicts,
  SpecialNode,
} from '../volume-files/index.ts';
import type {
  CompareRequest,
  FileReads,
  OpenRequest,
  ReadFilesRequest,
  SealRequest,
} from './messages.ts';

/** Sent before a thread's first task. Both sides share the memory; volume bytes are never sent. */
export interface ThreadData {
  readonly keys: CodecKeys;
  readonly memory: WebAssembly.Memory;
  readonly threadIndex: number;
}

export type ExtraQuestion = [descriptor: number, extra: string | undefined, isExact: boolean];

/** Parameters and results of each task. `ThreadPool` documents them. */
export interface Tasks {
  hash: [parameters: [messages: readonly (readonly Span[])[]], result: Uint8Array[]];
  hashPartly: [parameters: [messages: readonly PartialSpans[]], result: HashProgress[]];
  cut: [parameters: [spec: SplitterSpec, piece: Span, count: number], result: number[]];
  seal: [parameters: [request: SealRequest, address: number], result: Uint32Array];
  readFiles: [parameters: [request: ReadFilesRequest, slab: Span], result: FileReads];
  readDirectory: [
    parameters: [path: BytePath, entriesMax: number, rules: ExtraRules | undefined],
    result: DirectoryListing,
  ];
  lookAt: [
    parameters: [path: BytePath, names: Uint8Array, rules: ExtraRules | undefined],
    result: DirectoryListing,
  ];
  compareDirectory: [
    parameters: [
      path: BytePath,
      before: PackedStream,
      special: readonly string[],
      entriesMax: number,
      rules: ExtraRules | undefined,
    ],
    result: DirectoryComparison,
  ];
  compareRanges: [parameters: [request: CompareRequest, slab: Span], result: RangeVerdicts];
  open: [parameters: [request: OpenRequest], result: OpenResult];
  setAttributes: [
    parameters: [descriptor: number, attributes: FileAttributes, isLink: boolean],
    result: NotSet,
  ];
  hasExtra: [parameters: [questions: readonly ExtraQuestion[]], result: boolean[]];
  makeNode: [parameters: [path: BytePath, node: SpecialNode], result: boolean];
  readExtraOf: [parameters: [descriptor: number], result: string | undefined];
  syncFilesystem: [parameters: [descriptor: number], result: boolean];
}
export type TaskName = keyof Tasks;
export type TaskParameters<K extends TaskName> = Tasks[K][0];
export type TaskResult<K extends TaskName> = Tasks[K][1];
/** A method for each task. */
export type TaskMethods = {
  [K in TaskName]: (...parameters: TaskParameters<K>) => TaskResult<K>;
};

/** A task with its own parameters. */
export type TaskCall = {
  [K in TaskName]: { readonly task: K; readonly parameters: TaskParameters<K> };
}[TaskName];

export type Request =
  | { kind: 'init'; data: ThreadData }
  | { kind: 'task'; id: number; call: TaskCall }
  | { kind: 'stop' };

export type Reply =
  | { kind: 'ready' }
  | { kind: 'done'; id: number; result: TaskResult<TaskName> }
  | { kind: 'failed'; id: number; error: { code: string; message: string; stack: string } };
