import { spawn } from 'node:child_process';
import * as fs from 'node:fs';
import { syncBuiltinESMExports } from 'node:module';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import type { ThreadPool } from '../../src/volume-files/index.ts';
import type { Repository } from '../../src/repository/index.ts';
import { tempDirectory } from '../support/kopia.ts';
import { prng } from '../support/golden.ts';
import { backUp, createTest, openTest, restore } from '../support/repositories.ts';

/**
 * Somebody puts links where a restore is about to write: nothing outside of the target may change.
 */
export function restoreUnderSwaps(name: string): void {
  describe(`links that appear while a restore runs, ${name}`, () => {
    const work = tempDirectory('swaps');
    const at = (path: string): string => join(work, path);
    let repository: Repository;
    let undo: (() => void)[] = [];
    beforeAll(async () => {
      await createTest(at('repo'));
      repository = await openTest(at('repo'));
    });
    afterEach(() => {
      for (const step of undo) step();
      undo = [];
    });
    afterAll(async () => {
      await repository.close();
      fs.rmSync(work, { recursive: true, force: true });
    });

    /** A file and a directory that the restore must not change, with their state. */
    const outside = (test: string): { path: string; expectUntouched: () => void } => {
      const path = at(`${test}-outside`);
      fs.mkdirSync(join(path, 'directory'), { recursive: true });
      fs.writeFileSync(join(path, 'secret'), 'secret', { mode: 0o600 });
      fs.writeFileSync(join(path, 'directory/kept'), 'kept', { mode: 0o600 });
      fs.utimesSync(join(path, 'secret'), 1000, 1000);
      const look = (): object[] =>
        ['secret', 'directory', 'directory/kept'].map((file) => {
          const { mode, uid, gid, mtimeMs, size, nlink } = fs.lstatSync(join(path, file));
          return { file, mode, uid, gid, mtimeMs, size, nlink };
        });
      const before = look();
      return {
        path,
        expectUntouched: () => {
          expect(look()).toEqual(before);
        },
      };
    };

    /** Runs `swap` right after the first call of a function of `fs.promises` that fits. */
    const afterCall = (
      call: 'lstat' | 'symlink',
      fits: (parameters: unknown[]) => boolean,
      swap: () => void,
    ): void => {
      const functions = fs.promises as unknown as Record<string, (...p: unknown[]) => unknown>;
      const original = functions[call] as (...p: unknown[]) => unknown;
      functions[call] = async (...parameters) => {
        const result = await original(...parameters);
        if (fits(parameters)) swap();
        return result;
      };
      syncBuiltinESMExports();
      undo.push(() => {
        functions[call] = original;
        syncBuiltinESMExports();
      });
    };

    const endsWith =
      (file: string) =>
      (parameters: unknown[]): boolean =>
        parameters.some((value) => typeof value === 'string' && value.endsWith(`/${file}`));

    const onceOf = (swap: () => void): (() => void) => {
      let isDone = false;
      return () => {
        if (isDone) return;
        isDone = true;
        swap();
      };
    };

    const swapFor = (path: string, target: string): (() => void) =>
      onceOf(() => {
        fs.renameSync(path, `${path}.aside`);
        fs.symlinkSync(target, path);
      });

    it('a file of many contents: its mode never reaches what the link leads to', async () => {
      const { path, expectUntouched } = outside('large');
      fs.mkdirSync(at('large'));
      fs.writeFileSync(at('large/file'), Buffer.alloc(17 << 20, prng('large', 65_537)));
      fs.chmodSync(at('large/file'), 0o4777);
      const { rootEntry } = await backUp(repository, at('large'));
      const pool = repository.dataPath?.pool as ThreadPool;
      const open = pool.open.bind(pool);
      const swap = onceOf(() => {
        // The file is created under a temporary name.
        const [made = ''] = fs.readdirSync(at('large-out'));
        fs.renameSync(at(`large-out/${made}`), at('large-out/file.aside'));
        fs.symlinkSync(join(path, 'secret'), at(`large-out/${made}`));
      });
      pool.open = async (items) => {
        const failures = await open(items);
        swap();
        return failures;
      };
      undo.push(() => {
        pool.open = open;
      });
      await restore(repository, rootEntry, at('large-out')).catch(() => undefined);
      expect(fs.lstatSync(at('large-out/file')).isSymbolicLink()).toBe(true);
      expectUntouched();
      expect(fs.statSync(at('large-out/file.aside')).mode & 0o7777).toBe(0o4777);
    });

    it('a file that is there already: what it was when looked at is what is changed', async () => {
      const { path, expectUntouched } = outside('same');
      fs.mkdirSync(at('same'));
      fs.writeFileSync(at('same/file'), 'secret');
      fs.utimesSync(at('same/file'), 1000, 1000);
      fs.chmodSync(at('same/file'), 0o4777);
      const { rootEntry } = await backUp(repository, at('same'));
      await restore(repository, rootEntry, at('same-out'));
      fs.chmodSync(at('same-out/file'), 0o600);
      const swap = swapFor(at('same-out/file'), join(path, 'secret'));
      afterCall('lstat', endsWith('file'), swap);
      await restore(repository, rootEntry, at('same-out')).catch(() => undefined);
      expectUntouched();
    });

    it('a file with a second name elsewhere is replaced, not changed', async () => {
      const { path, expectUntouched } = outside('hard');
      fs.mkdirSync(at('hard'));
      fs.writeFileSync(at('hard/file'), 'secret');
      fs.utimesSync(at('hard/file'), 1000, 1000);
      fs.chmodSync(at('hard/file'), 0o4777);
      const { rootEntry } = await backUp(repository, at('hard'));
      fs.mkdirSync(at('hard-out'));
      // As if the owner of the volume had linked a file that the restore may write and he may not.
      fs.linkSync(join(path, 'secret'), at('hard-out/file'));
      await restore(repository, rootEntry, at('hard-out'));
      expect(fs.statSync(at('hard-out/file')).mode & 0o7777).toBe(0o4777);
      expect(fs.statSync(at('hard-out/file')).nlink).toBe(1);
      expectUntouched();
    });

    it('a link that turns into a second name of a file outside: its owner and time stay', async () => {
      const { path, expectUntouched } = outside('link');
      fs.mkdirSync(at('link'));
      fs.symlinkSync('anywhere', at('link/file'));
      fs.lchownSync(at('link/file'), 4711, 4711);
      const { rootEntry } = await backUp(repository, at('link'));
      const swap = onceOf(() => {
        fs.rmSync(at('link-out/file'));
        fs.linkSync(join(path, 'secret'), at('link-out/file'));
      });
      afterCall('symlink', endsWith('file'), swap);
      await expect(restore(repository, rootEntry, at('link-out'))).rejects.toMatchObject({
        message: expect.stringContaining('another process replaced it') as string,
      });
      fs.rmSync(at('link-out/file'));
      expectUntouched();
    });

    it('a file to replace that turns into a directory, or a link to one, is not emptied', async () => {
      const { path, expectUntouched } = outside('removed');
      fs.mkdirSync(at('removed'));
      fs.writeFileSync(at('removed/file'), 'new');
      const { rootEntry } = await backUp(repository, at('removed'));
      for (const makeOther of [
        () => fs.renameSync(join(path, 'directory'), at('removed-out/file')),
        () => fs.symlinkSync(join(path, 'directory'), at('removed-out/file')),
      ]) {
        fs.mkdirSync(at('removed-out'));
        fs.writeFileSync(at('removed-out/file'), 'old');
        const swap = onceOf(() => {
          fs.rmSync(at('removed-out/file'));
          makeOther();
        });
        afterCall('lstat', endsWith('file'), swap);
        await restore(repository, rootEntry, at('removed-out'), { overwrite: 'always' }).catch(
          () => undefined,
        );
        if (fs.lstatSync(at('removed-out/file')).isDirectory())
          fs.renameSync(at('removed-out/file'), join(path, 'directory'));
        expectUntouched();
        fs.rmSync(at('removed-out'), { recursive: true });
      }
    });

    it('whatever is swapped at whatever moment, nothing outside is touched', async () => {
      const { path, expectUntouched } = outside('race');
      const names = ['a', 'b', 'large', 'link', 'sub'];
      fs.mkdirSync(at('race/sub'), { recursive: true });
      fs.writeFileSync(at('race/a'), 'secret', { mode: 0o666 });
      fs.writeFileSync(at('race/b'), 'other', { mode: 0o666 });
      fs.writeFileSync(at('race/large'), Buffer.alloc(9 << 20, prng('race', 65_537)));
      fs.symlinkSync('a', at('race/link'));
      fs.writeFileSync(at('race/sub/kept'), 'evil', { mode: 0o666 });
      for (const file of ['a', 'b', 'large', 'sub/kept']) fs.chmodSync(at(`race/${file}`), 0o4777);
      fs.lchownSync(at('race/link'), 4711, 4711);
      const { rootEntry } = await backUp(repository, at('race'));
      fs.mkdirSync(at('race-out'));
      const script = new URL('../support/swap-links.ts', import.meta.url).pathname;
      const swapper = spawn(process.execPath, [script, at('race-out'), path, ...names], {
        stdio: ['ignore', 'pipe', 'inherit'],
      });
      try {
        await new Promise((resolve) => swapper.stdout.once('data', resolve));
        for (let round = 0; round < 20; round++) {
          const overwrite = round % 2 === 0 ? 'always' : 'if-different';
          await restore(repository, rootEntry, at('race-out'), { overwrite }).catch(
            (error: unknown) => {
              // The error of the swapped entries. An error of another kind is a fault.
              expect(error).toMatchObject({
                message: expect.stringContaining('cannot restore') as string,
              });
            },
          );
        }
      } finally {
        swapper.kill('SIGKILL');
      }
      fs.rmSync(at('race-out'), { recursive: true });
      expectUntouched();
    });
  });
}
