import type { CodecKeys } from '../codec/index.ts';
import type { TaskName } from './tasks.ts';

/** What a thread gets before its first task. Both sides hold the same memory; volume bytes never travel. */
export interface ThreadData {
  readonly keys: CodecKeys;
  readonly memory: WebAssembly.Memory;
  readonly threadIndex: number;
}

export type Request =
  | { kind: 'init'; data: ThreadData }
  | { kind: 'task'; id: number; task: TaskName; parameters: unknown[] }
  | { kind: 'stop' };

export type Reply =
  | { kind: 'ready' }
  | { kind: 'done'; id: number; result: unknown }
  | { kind: 'failed'; id: number; error: { code: string; message: string; stack: string } };
