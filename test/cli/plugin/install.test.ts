import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { installPlugin } from '../../../src/cli/plugin/install.ts';
import { tempDirectory } from '../../support/kopia.ts';

const NAME = 'velero-plugin-longshore';
let work: string;
let launcher: string;
let target: string;

beforeEach(() => {
  work = tempDirectory('plugin-install');
  launcher = join(work, 'image', NAME);
  target = join(work, 'target');
  fs.mkdirSync(join(work, 'image/longshore'), { recursive: true });
  fs.writeFileSync(launcher, 'launcher', { mode: 0o555 });
  for (const name of ['node', 'ld.so']) {
    fs.writeFileSync(join(work, 'image/longshore', name), name, { mode: 0o444 });
  }
});
afterEach(() => fs.rmSync(work, { recursive: true, force: true }));

function assertInstalled(): void {
  expect(fs.readdirSync(target).sort()).toEqual(['longshore', NAME]);
  expect(fs.readdirSync(join(target, 'longshore')).sort()).toEqual(['ld.so', 'node']);
  expect(fs.readFileSync(join(target, NAME), 'utf8')).toBe('launcher');
  expect(fs.statSync(join(target, NAME)).mode & 0o777).toBe(0o555);
  expect(fs.statSync(join(target, 'longshore/node')).mode & 0o777).toBe(0o444);
}

it('copies the launcher and its folder, and nothing but the launcher may be executed', () => {
  installPlugin(launcher, target);
  assertInstalled();
});

it('replaces another version, and what a run that was killed has left', () => {
  fs.mkdirSync(join(target, 'longshore'), { recursive: true });
  fs.mkdirSync(join(target, 'longshore.coming'), { recursive: true });
  fs.writeFileSync(join(target, 'longshore/old'), 'old');
  fs.writeFileSync(join(target, 'longshore.coming/half'), 'half');
  fs.writeFileSync(join(target, NAME), 'old');
  installPlugin(launcher, target);
  assertInstalled();
});

it('leaves plugins of others alone', () => {
  fs.mkdirSync(target);
  fs.writeFileSync(join(target, 'velero-plugin-for-aws'), 'theirs');
  installPlugin(launcher, target);
  expect(fs.readFileSync(join(target, 'velero-plugin-for-aws'), 'utf8')).toBe('theirs');
});

it('says what to mount where it cannot write', () => {
  fs.writeFileSync(target, 'a file');
  expect(() => installPlugin(launcher, target)).toThrow(
    expect.objectContaining({
      code: 'PLUGIN_NOT_INSTALLED',
      message: expect.stringMatching(/could not be copied to .*mount the plugins volume/) as string,
    }),
  );
});
