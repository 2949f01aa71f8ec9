import * as fs from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { z } from 'zod';
import {
  CodedError,
  isCode,
  makeDirectories,
  messageOf,
  randomHex,
  refusalOf,
} from '../base/index.ts';

/** Other users must not be able to change the command that is run. */
const WRITABLE_BY_OTHERS = 0o022;

const connectionSchema = z.strictObject({
  /** In the form of `--repo`, with absolute paths. */
  repo: z.string().min(1),
  /** An absolute path. */
  passwordFile: z.string().min(1).optional(),
  /** Run by `/bin/sh`; its output is the password. */
  passwordCommand: z.string().min(1).optional(),
  /** `user@host`. */
  client: z.string().min(1).optional(),
});
const schema = z.strictObject({
  current: z.string().optional(),
  repositories: z.record(z.string(), connectionSchema),
});

/** A saved repository and the source of its password. The password itself is not stored. */
export type Connection = Readonly<z.infer<typeof connectionSchema>>;
/** By name. `current` is the default. */
export type Connections = Readonly<z.infer<typeof schema>>;

/** Reads the file of `repository connect`, if any. Throws `BAD_CONNECTIONS` with its path. */
export async function loadConnections(path: string): Promise<Connections> {
  let text: string;
  try {
    await using file = await fs.open(path, 'r');
    const { mode, uid } = await file.stat();
    if ((mode & WRITABLE_BY_OTHERS) !== 0 || ![0, process.getuid?.() ?? 0].includes(uid)) {
      throw bad(path, 'other users can write to it: it must be yours, with mode 0600');
    }
    text = await file.readFile('utf8');
  } catch (error) {
    if (isCode(error, 'ENOENT', 'ENOTDIR')) return { repositories: {} };
    if (isCode(error, 'BAD_CONNECTIONS')) throw error;
    throw bad(path, `cannot read it: ${messageOf(error)}`);
  }
  const parsed = schema.safeParse(json(text));
  if (parsed.success) return parsed.data;
  const [issue] = parsed.error.issues;
  const where = issue && issue.path.length > 0 ? `${issue.path.join('.')}: ` : '';
  throw bad(path, `${where}${issue?.message ?? 'it is not JSON'}`);
}

/** Replaces the file atomically. Throws `BAD_CONNECTIONS`. */
export async function saveConnections(path: string, connections: Connections): Promise<void> {
  const temporary = join(dirname(path), `.${basename(path)}.${randomHex(6)}`);
  try {
    await makeDirectories(dirname(path), 0o700);
    try {
      const text = `${JSON.stringify(connections, null, 2)}\n`;
      await fs.writeFile(temporary, text, { mode: 0o600, flag: 'wx', flush: true });
      await fs.rename(temporary, path);
    } finally {
      await fs.rm(temporary, { force: true });
    }
  } catch (error) {
    throw bad(path, `cannot write it: ${refusalOf(error)}`);
  }
}

function json(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

const bad = (path: string, text: string): CodedError =>
  new CodedError('BAD_CONNECTIONS', `the file of connected repositories, ${path}: ${text}`);
