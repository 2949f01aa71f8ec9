/**
 * `node --import block-reads.ts`: opening a file called `hangs` or `hangs-large` blocks in the
 * kernel forever, like a dead file server. The pipe of `BLOCKING_PIPE` has no writer.
 */
import fs from 'node:fs';
import Module, { syncBuiltinESMExports } from 'node:module';

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

/** openat2 has this number on all platforms. Sources and packages call it through koffi. */
const SYS_OPENAT2 = 437;
type Call = (...parameters: unknown[]) => unknown;
interface Library {
  func: (signature: string) => Call;
}

function blocking(call: Call): Call {
  return (number, directory, path, ...rest) => {
    if (
      number !== SYS_OPENAT2 ||
      !isBlocked(
        Buffer.from(path as Uint8Array)
          .toString()
          .slice(0, -1),
      )
    )
      return call(number, directory, path, ...rest);
    note();
    return openSync(pipe, 'r');
  };
}

const loader = Module as unknown as { _load: (request: string, ...rest: unknown[]) => unknown };
const { _load } = loader;
loader._load = (request, ...rest) => {
  const loaded = _load(request, ...rest);
  if (request !== 'koffi') return loaded;
  const koffi = loaded as { load: (path: string | null) => Library; errno: () => number };
  const load = (path: string | null): Library => {
    const library = koffi.load(path);
    return {
      func: (signature) => {
        const call = library.func(signature);
        return signature.includes(' syscall(') ? blocking(call) : call;
      },
    };
  };
  return { load, errno: () => koffi.errno() };
};
