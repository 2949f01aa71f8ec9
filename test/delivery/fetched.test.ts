import { execFile, spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import * as fs from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { describe, expect, it } from 'vitest';
import { tempDirectory } from '../support/kopia.ts';

const ROOT = new URL('../../', import.meta.url).pathname;
const NODE = 'node_modules/node/bin/node';
const ADDON = 'node_modules/zstd-napi/build/Release/binding.node';
const ARCHITECTURE = process.arch === 'arm64' ? 'arm64' : 'amd64';

/** A checkout with the given bytes as Node, their hash in the tree, and a compiled zstd. */
function checkout(): string {
  const folder = tempDirectory('fetched');
  const marker = join(folder, 'was-started');
  const program = Buffer.from(`#!/bin/sh\ntouch ${marker}\n`);
  const hash = createHash('sha256').update(program).digest('hex');
  const put = (path: string, text: string | Buffer, mode = 0o644): void => {
    fs.mkdirSync(join(folder, path, '..'), { recursive: true });
    fs.writeFileSync(join(folder, path), text, { mode });
  };
  put('image/node.sha256', `# hashes\n24.0.0 ${ARCHITECTURE} ${hash}\n`);
  put('image/check-fetched.sh', fs.readFileSync(join(ROOT, 'image/check-fetched.sh')), 0o755);
  put('node_modules/node/package.json', '{\n  "version": "24.0.0"\n}\n');
  put(NODE, program, 0o755);
  put(ADDON, 'compiled');
  put('node_modules/zstd-napi/build/Makefile', '');
  return folder;
}
const check = (folder: string): { status: number | null; stderr: string } =>
  spawnSync(join(folder, 'image/check-fetched.sh'), {
    encoding: 'utf8',
    env: { ...process.env, PATH: `${join(folder, 'bin')}:${process.env.PATH ?? ''}` },
  });

describe.skipIf(process.platform !== 'linux')('after an installation in a checkout', () => {
  it('everything stays that the tree names', () => {
    const folder = checkout();
    expect(check(folder)).toMatchObject({ status: 0, stderr: '' });
    expect([NODE, ADDON].map((path) => fs.existsSync(join(folder, path)))).toEqual([true, true]);
  });

  it('deletes a Node of which one byte is another', () => {
    const folder = checkout();
    const bytes = fs.readFileSync(join(folder, NODE));
    bytes[bytes.length - 2] = 0x79;
    fs.writeFileSync(join(folder, NODE), bytes);
    const { status, stderr } = check(folder);
    expect(status).toBe(1);
    expect(stderr).toContain('is not the one that image/node.sha256 names');
    expect(fs.existsSync(join(folder, NODE))).toBe(false);
    expect(fs.existsSync(join(folder, 'was-started'))).toBe(false);
  });

  it('deletes a Node of a version that the tree does not name', () => {
    const folder = checkout();
    fs.writeFileSync(
      join(folder, 'node_modules/node/package.json'),
      '{\n  "version": "24.0.1"\n}\n',
    );
    expect(check(folder).status).toBe(1);
    expect(fs.existsSync(join(folder, NODE))).toBe(false);
  });

  it.each([true, false])('keeps no fetched binary of zstd, with a compiler: %s', (compiles) => {
    const folder = checkout();
    const build = join(folder, 'node_modules/zstd-napi/build');
    fs.rmSync(join(build, 'Makefile'));
    const makes = `mkdir -p ${build}/Release; touch ${build}/Makefile; echo "$npm_config_build_from_source" >${folder}/${ADDON}`;
    fs.mkdirSync(join(folder, 'bin'));
    const npm = `#!/bin/sh\n${compiles ? makes : 'exit 1'}\n`;
    fs.writeFileSync(join(folder, 'bin/npm'), npm, { mode: 0o755 });
    const { status, stderr } = check(folder);
    // An installation needs Node and npm alone: the package is optional.
    expect(status).toBe(0);
    expect(stderr).toContain('compiling zstd-napi from the sources of its package');
    expect(stderr.includes('could not be compiled')).toBe(!compiles);
    if (compiles) expect(fs.readFileSync(join(folder, ADDON), 'utf8')).toBe('zstd-napi\n');
    else expect(fs.existsSync(join(folder, ADDON))).toBe(false);
  });

  // prebuild-install starts a fetched binary before anything can compare its hash.
  it('fetches no binary of zstd, so that none is started', async () => {
    const asked: string[] = [];
    const host = createServer((request, response) => {
      asked.push(request.url ?? '');
      response.writeHead(404).end();
    });
    await new Promise<void>((resolve) => host.listen(0, '127.0.0.1', resolve));
    const { port } = host.address() as AddressInfo;
    const program = join(ROOT, 'node_modules/prebuild-install/bin.js');
    const install = `node ${program} -r napi --download=http://127.0.0.1:${port}/zstd.tar.gz`;
    const fetchesIn = async (npmrc: string): Promise<number> => {
      const folder = tempDirectory('zstd');
      fs.writeFileSync(join(folder, '.npmrc'), `${npmrc}\ncache=${folder}/cache\n`);
      const binary = { napi_versions: [6] };
      const scripts = { install: `${install} || true` };
      const manifest = { name: 'zstd-napi', version: '1.0.0', binary, scripts };
      fs.writeFileSync(join(folder, 'package.json'), JSON.stringify(manifest));
      asked.length = 0;
      const env = Object.entries(process.env).filter(([name]) => !name.startsWith('npm_config_'));
      const npm = promisify(execFile);
      await npm('npm', ['install', '--offline'], { cwd: folder, env: Object.fromEntries(env) });
      return asked.length;
    };
    try {
      expect(await fetchesIn('')).toBeGreaterThan(0);
      expect(await fetchesIn(fs.readFileSync(join(ROOT, '.npmrc'), 'utf8'))).toBe(0);
    } finally {
      host.close();
    }
  }, 120_000);

  it('is done by npm, by CI, and by the build of the image', () => {
    const read = (path: string): string => fs.readFileSync(join(ROOT, path), 'utf8');
    const { scripts } = JSON.parse(read('package.json')) as { scripts: Record<string, string> };
    expect(scripts.prepare).toBe('image/check-fetched.sh');
    expect(read('.ci/run')).toMatch(/^part fetched image\/check-fetched\.sh \|\| exit 1$/m);
    expect(read('Dockerfile')).toContain(
      'npm ci --ignore-scripts --no-audit --no-fund && npm rebuild node',
    );
  });
});
