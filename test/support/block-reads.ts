/**
 * `node --import block-reads.ts`: whoever opens a file called `hangs` or `hangs-large` waits in the kernel for ever, as
 * with a file server that is gone. The pipe of `BLOCKING_PIPE` has no writer.
 */
import fs from 'node:fs';
import { syncBuiltinESMExports } from 'node:module';

const { openSync } = fs;
const { open } = fs.promises;
const pipe = process.env.BLOCKING_PIPE ?? '';
const isBlocked = (path: unknown): boolean => /\/hangs(-large)?$/.test(String(path));
const note = (): void => {
  fs.writeSync(2, 'blocked\n');
};

fs.openSync = (path, flags, mode) => {
  if (!isBlocked(path)) return openSync(path, flags, mode);
  note();
  return openSync(pipe, 'r');
};
fs.promises.open = (path, flags, mode) => {
  if (!isBlocked(path)) return open(path, flags, mode);
  note();
  return open(pipe, 'r');
};
syncBuiltinESMExports();
