import { execFileSync, spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { tempDirectory } from '../support/kopia.ts';

const ROOT = new URL('../../', import.meta.url).pathname;
const TOOLS = ['dash', 'tini', 'g++', 'make', 'python3', 'dpkg-query', 'npm'];
const HEADERS = join(process.env.npm_config_nodedir ?? '/usr', 'include/node/node_api.h');
const canBuild =
  process.getuid?.() === 0 &&
  fs.existsSync(HEADERS) &&
  TOOLS.every((tool) => spawnSync('sh', ['-c', `command -v ${tool}`]).status === 0);

const work = tempDirectory('image');
afterAll(() => fs.rmSync(work, { recursive: true, force: true }));
const rootfs = join(work, 'rootfs');
const PREBUILT = 'a binary that was fetched from elsewhere';

/** This project with a binary of zstd-napi that an install script has fetched: the rest is linked. */
function projectWithFetchedBinary(): string {
  const project = join(work, 'project');
  fs.mkdirSync(join(project, 'node_modules'), { recursive: true });
  for (const name of ['image', 'bin', 'src', 'package.json', 'package-lock.json', 'LICENSE']) {
    fs.cpSync(join(ROOT, name), join(project, name), { recursive: true });
  }
  for (const name of fs.readdirSync(join(ROOT, 'node_modules'))) {
    if (name === 'zstd-napi' || name === '.cache') continue;
    fs.symlinkSync(join(ROOT, 'node_modules', name), join(project, 'node_modules', name));
  }
  const native = join(project, 'node_modules/zstd-napi');
  fs.cpSync(join(ROOT, 'node_modules/zstd-napi'), native, {
    recursive: true,
    filter: (path) => !/zstd-napi\/build(\/|$)/.test(path),
  });
  fs.mkdirSync(join(native, 'build/Release'), { recursive: true });
  fs.writeFileSync(join(native, 'build/Release/binding.node'), PREBUILT);
  return project;
}

interface Document {
  packages: { SPDXID: string; name: string; versionInfo: string }[];
  files: { SPDXID: string; fileName: string; checksums: { checksumValue: string }[] }[];
  relationships: { spdxElementId: string; relationshipType: string; relatedSpdxElement: string }[];
}

describe.skipIf(!canBuild)("the image's root file system", () => {
  let document: Document;
  beforeAll(() => {
    const script = join(projectWithFetchedBinary(), 'image/rootfs.sh');
    execFileSync(script, [rootfs], { stdio: ['ignore', 'ignore', 'pipe'] });
    const text = fs.readFileSync(join(rootfs, 'opt/longshore/longshore.spdx.json'), 'utf8');
    document = JSON.parse(text) as Document;
  }, 1_800_000);

  it('has zstd compiled from the sources of its package, whatever an install script fetched', () => {
    const path = join(rootfs, 'opt/longshore/node_modules/zstd-napi/build/Release/binding.node');
    const binary = fs.readFileSync(path);
    expect(binary.toString('latin1')).not.toContain(PREBUILT);
    expect(binary.subarray(0, 4).toString('latin1')).toBe('\u007fELF');
    const compiler = execFileSync('g++', ['-dumpfullversion'], { encoding: 'utf8' }).trim();
    expect(binary.toString('latin1')).toContain(compiler);
    const script = "require('/opt/longshore/node_modules/zstd-napi').compress(Buffer.from('a'))";
    const node = '/opt/longshore/node_modules/node/bin/node';
    expect(spawnSync('chroot', [rootfs, node, '-e', script]).status).toBe(0);
  });

  it('has no tools but those that the launcher calls', () => {
    const names = ['bin', 'sbin'].flatMap((folder) => fs.readdirSync(join(rootfs, folder)));
    expect(names.sort()).toEqual(['dirname', 'longshore', 'readlink', 'sh', 'tini']);
  });

  it('is told file by file, each with its package and hash, and nothing else is told', () => {
    const told = new Map(document.files.map(({ fileName, ...file }) => [fileName, file]));
    const there = fs
      .readdirSync(rootfs, { recursive: true, withFileTypes: true })
      .filter((entry) => entry.isFile())
      .map((entry) => join(entry.parentPath, entry.name))
      .filter((path) => !path.endsWith('/longshore.spdx.json'));
    expect(there.length).toBeGreaterThan(20);
    expect([...told.keys()].sort()).toEqual(
      there.map((path) => `./${path.slice(rootfs.length + 1)}`).sort(),
    );
    const owned = new Map(
      document.relationships
        .filter(({ relationshipType }) => relationshipType === 'CONTAINS')
        .map(({ spdxElementId, relatedSpdxElement }) => [relatedSpdxElement, spdxElementId]),
    );
    const packages = new Map(document.packages.map((each) => [each.SPDXID, each]));
    for (const path of there) {
      const file = told.get(`./${path.slice(rootfs.length + 1)}`);
      const hash = createHash('sha256').update(fs.readFileSync(path)).digest('hex');
      expect(file?.checksums[0]?.checksumValue, path).toBe(hash);
      const owner = packages.get(owned.get(file?.SPDXID ?? '') ?? '');
      expect(owner?.versionInfo, path).toMatch(/\d/);
    }
    expect(packages.size).toBe(document.packages.length);
    expect(new Set(document.files.map(({ SPDXID }) => SPDXID)).size).toBe(document.files.length);
  });

  it('names C libraries, shell, init and certificates, what is compiled in, and no package that is not inside', () => {
    const names = document.packages.map(({ name }) => name);
    const inside = ['libc6', 'libstdc++6', 'dash', 'coreutils', 'tini', 'ca-certificates'];
    const compiledIn = ['zstd', 'openssl', 'commander', 'zod', '@aws-sdk/client-s3'];
    expect(names).toEqual(
      expect.arrayContaining([...inside, ...compiledIn, 'node', 'koffi', 'zstd-napi', 'longshore']),
    );
    // It is in the lockfile for the installation of zstd-napi only.
    expect(names).not.toContain('prebuild-install');
  });
});
