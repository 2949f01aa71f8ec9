import { execFileSync, spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { LIST_PLUGINS } from '../../src/plugin/protocol/messages.ts';
import { tempDirectory } from '../support/kopia.ts';
import { HOST, PluginClient, type PluginProcess, startPlugin } from '../support/plugin-client.ts';

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

const PLUGIN_DOCUMENT = 'plugins/longshore/velero-plugin-longshore.spdx.json';

const QEMU = '/usr/bin/qemu-aarch64-static';
/** There is nothing to cross to from arm64. */
const canCross =
  canBuild &&
  process.arch === 'x64' &&
  fs.existsSync(QEMU) &&
  spawnSync('sh', ['-c', 'command -v aarch64-linux-gnu-g++']).status === 0;

/**
 * This project with a binary of zstd-napi that an install script has fetched: the rest is linked.
 */
function projectWithFetchedBinary(name = 'project'): string {
  const project = join(work, name);
  fs.mkdirSync(join(project, 'node_modules'), { recursive: true });
  const folders = ['image', 'bin', 'src', 'crds', 'manifests'];
  for (const part of [...folders, 'package.json', 'package-lock.json', 'LICENSE']) {
    fs.cpSync(join(ROOT, part), join(project, part), { recursive: true });
  }
  for (const part of fs.readdirSync(join(ROOT, 'node_modules'))) {
    if (part === 'zstd-napi' || part === '.cache') continue;
    fs.symlinkSync(join(ROOT, 'node_modules', part), join(project, 'node_modules', part));
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

/**
 * Files by the names of their packages. Expects that the document tells every file of the folder
 * and nothing else, by hash.
 */
function ownersTold(document: Document, folder: string): Map<string, string> {
  const told = new Map(document.files.map(({ fileName, ...file }) => [fileName, file]));
  const there = fs
    .readdirSync(folder, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => `./${join(entry.parentPath, entry.name).slice(folder.length + 1)}`)
    .filter((path) => !path.endsWith('.spdx.json'));
  expect([...told.keys()].sort()).toEqual(there.sort());
  const owned = new Map(
    document.relationships
      .filter(({ relationshipType }) => relationshipType === 'CONTAINS')
      .map(({ spdxElementId, relatedSpdxElement }) => [relatedSpdxElement, spdxElementId]),
  );
  const packages = new Map(document.packages.map((each) => [each.SPDXID, each]));
  const owners = new Map<string, string>();
  for (const path of there) {
    const file = told.get(path);
    const hash = createHash('sha256')
      .update(fs.readFileSync(join(folder, path)))
      .digest('hex');
    expect(file?.checksums[0]?.checksumValue, path).toBe(hash);
    const owner = packages.get(owned.get(file?.SPDXID ?? '') ?? '');
    expect(owner?.versionInfo, path).toMatch(/\d/);
    owners.set(path, owner?.name ?? '');
  }
  expect(packages.size).toBe(document.packages.length);
  expect(new Set(document.files.map(({ SPDXID }) => SPDXID)).size).toBe(document.files.length);
  const ids = new Set(['SPDXRef-DOCUMENT', ...packages.keys()]);
  for (const { SPDXID } of document.files) ids.add(SPDXID);
  const named = document.relationships.flatMap((each) => [
    each.spdxElementId,
    each.relatedSpdxElement,
  ]);
  expect(named.filter((id) => !ids.has(id))).toEqual([]);
  return owners;
}

/** Paths of programs and libraries, each with the number that ELF gives its machine. */
function machinesOf(folder: string): Map<string, number> {
  const found = new Map<string, number>();
  for (const entry of fs.readdirSync(folder, { recursive: true, withFileTypes: true })) {
    if (!entry.isFile()) continue;
    const path = join(entry.parentPath, entry.name);
    const head = fs.readFileSync(path).subarray(0, 20);
    if (head.subarray(1, 4).toString('latin1') !== 'ELF') continue;
    found.set(path.slice(folder.length), head.readUInt16LE(18));
  }
  return found;
}

describe.skipIf(!canBuild)("the image's root file system", () => {
  let document: Document;
  let said: string;
  const makeSaying = (stderr: 'pipe' | number, project: string, ...parameters: string[]): string =>
    execFileSync(join(project, 'image/rootfs.sh'), parameters, {
      encoding: 'utf8',
      stdio: ['ignore', 'pipe', stderr],
    });
  const make = (project: string, ...parameters: string[]): string =>
    makeSaying('pipe', project, ...parameters);
  beforeAll(() => {
    said = make(projectWithFetchedBinary(), rootfs);
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
    // Without the environment of the tests, which may name a folder for compiled code.
    const { status } = spawnSync('/usr/sbin/chroot', [rootfs, node, '-e', script], { env: {} });
    expect(status).toBe(0);
  });

  it('has no tools but those that the launcher calls', () => {
    const names = ['bin', 'sbin'].flatMap((folder) => fs.readdirSync(join(rootfs, folder)));
    expect(names.sort()).toEqual(['longshore', 'readlink', 'sh', 'tini']);
  });

  it('is told file by file, each with its package and hash, and nothing else is told', () => {
    const owners = ownersTold(document, rootfs);
    expect(owners.size).toBeGreaterThan(20);
    expect(owners.get('./bin/sh')).toBe('dash');
  });

  it('names C libraries, shell, init and certificates, what is compiled in, and no package that is not inside', () => {
    const names = document.packages.map(({ name }) => name);
    const inside = ['libc6', 'libstdc++6', 'dash', 'coreutils', 'tini', 'ca-certificates'];
    const compiledIn = ['zstd', 'openssl', 'commander', 'zod', '@aws-sdk/client-s3'];
    expect(names).toEqual(
      expect.arrayContaining([...inside, ...compiledIn, 'node', 'koffi', 'zstd-napi', 'longshore']),
    );
    // The lockfile has it only for the installation of zstd-napi.
    expect(names).not.toContain('prebuild-install');
  });

  it('is the same, byte by byte, when it is made again elsewhere', () => {
    expect(said).toMatch(/^root file system: \d+ MiB, sha256:[0-9a-f]{64}$/m);
    const again = join(work, 'again');
    // The target of standard error decides much of the code that Node compiles first.
    const log = fs.openSync(join(work, 'log'), 'w');
    const saidAgain = makeSaying(log, projectWithFetchedBinary('project-again'), again);
    fs.closeSync(log);
    const options = ['-rq', '--no-dereference'];
    const { stdout } = spawnSync('diff', [...options, rootfs, again], { encoding: 'utf8' });
    expect(stdout).toBe('');
    expect(saidAgain).toBe(said);
    fs.rmSync(again, { recursive: true });
  }, 900_000);

  it('has code that is compiled already, and that Node takes as it is', () => {
    const env = {
      PATH: '/bin',
      NODE_COMPILE_CACHE: '/opt/longshore/cache',
      NODE_DEBUG_NATIVE: 'COMPILE_CACHE',
    };
    const parameters = [rootfs, '/velero', 'node-agent', 'server', '--help'];
    const { stdout, stderr } = spawnSync('/usr/sbin/chroot', parameters, { env, encoding: 'utf8' });
    expect(stdout + stderr).toMatch(/V8 code cache for ESM .*dist\/cli\.js was accepted/);
    expect(stdout + stderr).not.toMatch(/was rejected/);
  });

  it('holds no Node but the one that the tree names by its hash', () => {
    const project = projectWithFetchedBinary('project-other');
    const hashes = join(project, 'image/node.sha256');
    const out = join(work, 'other');
    const refusal = (text: string): string => {
      fs.writeFileSync(hashes, text);
      return spawnSync(join(project, 'image/rootfs.sh'), [out], { encoding: 'utf8' }).stderr;
    };
    const text = fs.readFileSync(hashes, 'utf8');
    expect(refusal(text.replaceAll(/[0-9a-f]{64}/g, 'f'.repeat(64)))).toMatch(
      /is not the one that image\/node\.sha256 names: its hash is [0-9a-f]{64}/,
    );
    expect(refusal('')).toMatch(/image\/node\.sha256 has no hash of Node 24\.\d+\.\d+ for /);
  });

  it('starts no fetched Node before its hash was compared', () => {
    const project = projectWithFetchedBinary('project-foreign');
    const node = join(project, 'node_modules/node');
    const marker = join(work, 'was-started');
    fs.rmSync(node);
    fs.mkdirSync(join(node, 'bin'), { recursive: true });
    fs.copyFileSync(join(ROOT, 'node_modules/node/package.json'), join(node, 'package.json'));
    const script = `#!/bin/sh\ntouch ${marker}\necho 24.21.0\n`;
    fs.writeFileSync(join(node, 'bin/node'), script, { mode: 0o755 });
    const out = join(work, 'foreign');
    const { stderr } = spawnSync(join(project, 'image/rootfs.sh'), [out], { encoding: 'utf8' });
    expect(stderr).toMatch(/is not the one that image\/node\.sha256 names/);
    expect(fs.existsSync(marker)).toBe(false);
  });

  describe("and what is made of it for Velero's own image", () => {
    const plugin = join(work, 'plugin');
    /**
     * A root file system with only the files that the init container has copied: no C library, no
     * shell, no Node.
     */
    const stock = join(work, 'stock');
    const started: PluginProcess[] = [];
    const makePlugin = (out: string): string =>
      execFileSync(join(ROOT, 'image/plugin.sh'), [out, rootfs], { encoding: 'utf8' });
    /** As a container is started: with its own root and /proc. */
    const inside = (root: string, ...command: string[]): [string, ...string[]] => [
      'unshare',
      '--mount',
      'sh',
      '-c',
      'mount -t proc proc "$0/proc" && exec /usr/sbin/chroot "$0" "$@"',
      root,
      ...command,
    ];
    const run = (root: string, ...command: string[]) => {
      const [program, ...parameters] = inside(root, ...command);
      return spawnSync(program, parameters, { env: { PATH: process.env.PATH }, encoding: 'utf8' });
    };
    const PROGRAM = '/plugins/velero-plugin-longshore';

    beforeAll(() => {
      expect(makePlugin(plugin)).toMatch(/^plugin: \d+ MiB, sha256:[0-9a-f]{64}\n$/);
      fs.mkdirSync(join(plugin, 'target'));
      const { status, stderr } = run(plugin, PROGRAM, 'install', '/target');
      expect(stderr).toBe('');
      expect(status).toBe(0);
      for (const folder of ['proc', 'tmp']) fs.mkdirSync(join(stock, folder), { recursive: true });
      fs.renameSync(join(plugin, 'target'), join(stock, 'plugins'));
    }, 120_000);
    afterEach(async () => {
      for (const { process: each, exit } of started.splice(0)) {
        each.kill('SIGKILL');
        await exit;
      }
    });

    it('is the same, byte by byte, when it is made or copied again', () => {
      const again = join(work, 'plugin-again');
      const said = makePlugin(again);
      expect(makePlugin(plugin)).toBe(said);
      const { stdout } = spawnSync('diff', ['-rq', join(again, 'plugins'), join(stock, 'plugins')]);
      expect(stdout.toString()).toBe('');
      fs.rmSync(again, { recursive: true });
    });

    it('is told file by file, and of packages those that are inside', () => {
      const text = fs.readFileSync(join(stock, PLUGIN_DOCUMENT), 'utf8');
      const told = JSON.parse(text) as Document;
      const filled = join(work, 'plugin-told');
      makePlugin(filled);
      const owners = ownersTold(told, filled);
      expect(owners.get('./plugins/velero-plugin-longshore')).toBe('longshore');
      expect(owners.get('./plugins/longshore/node')).toBe('node');
      expect(owners.get('./plugins/longshore/ld.so')).toBe('libc6');
      expect(owners.get('./plugins/longshore/libstdc++.so.6')).toBe('libstdc++6');
      const names = told.packages.map(({ name }) => name);
      // Compiled into Node, bundled in the program, and what only the image has.
      expect(names).toEqual(expect.arrayContaining(['openssl', 'v8', 'p-queue']));
      expect(names.filter((name) => document.packages.every((each) => each.name !== name))).toEqual(
        [],
      );
      for (const absent of ['dash', 'tini', 'koffi', 'zstd-napi', '@aws-sdk/client-s3']) {
        expect(document.packages.map(({ name }) => name)).toContain(absent);
        expect(names).not.toContain(absent);
      }
      fs.rmSync(filled, { recursive: true });
      const stranger = join(work, 'plugin-with-stranger');
      fs.mkdirSync(stranger);
      fs.writeFileSync(join(stranger, 'other'), 'of nobody');
      const script = join(ROOT, 'image/plugin-spdx.ts');
      const { status, stderr } = spawnSync('npx', ['node', script, stranger, rootfs], {
        cwd: ROOT,
        encoding: 'utf8',
      });
      expect(stderr).toContain('other is in the plugin, and no package has it');
      expect(status).toBe(1);
    });

    it('lets Velero start one file, which needs no library', () => {
      const entries = fs.readdirSync(join(stock, 'plugins'), {
        recursive: true,
        withFileTypes: true,
      });
      const files = entries.filter((entry) => entry.isFile());
      const isStarted = (path: string): boolean => (fs.statSync(path).mode & 0o111) !== 0;
      const paths = files.map(({ parentPath, name }) => join(parentPath, name));
      expect(paths.filter(isStarted)).toEqual([join(stock, PROGRAM)]);
      const { stdout } = spawnSync('readelf', ['-dl', join(stock, PROGRAM)], { encoding: 'utf8' });
      expect(stdout).not.toMatch(/NEEDED|INTERP/);
    });

    it('starts where there is nothing else, and names itself as what Velero started', async () => {
      const flags = ['--features=', '--log-level', 'debug', '--a-flag-of-tomorrow', 'x y'];
      const found = await startPlugin(inside(stock, PROGRAM, ...flags), HOST);
      started.push(found);
      expect(found.handshake?.fields.slice(0, 3), found.log.join('\n')).toEqual(['1', '2', 'unix']);
      const { address = '', fields = [] } = found.handshake ?? {};
      expect(fields[4]).toBe('grpc');
      const handshake = { fields, address: join(stock, address), certificate: '' };
      const client = new PluginClient(handshake);
      const { plugins } = await client.call(
        '/generated.PluginLister/ListPlugins',
        LIST_PLUGINS,
        {},
      );
      client.close();
      expect(plugins).toHaveLength(13);
      expect(plugins).toContainEqual({
        command: PROGRAM,
        kind: 'ItemBlockAction',
        name: 'longshore.io/pvc',
      });
    });

    it('tells a person who starts it what it is', () => {
      const { status, stderr } = run(stock, PROGRAM);
      expect(stderr).toMatch(/^velero-plugin-longshore: this program is a plugin of Velero/);
      expect(status).toBe(1);
    });

    it('says what is missing where its folder was not copied with it', () => {
      const alone = join(work, 'alone');
      for (const folder of ['proc', 'plugins']) {
        fs.mkdirSync(join(alone, folder), { recursive: true });
      }
      fs.copyFileSync(join(stock, PROGRAM), join(alone, PROGRAM));
      const { status, stderr } = run(alone, PROGRAM);
      expect(stderr).toBe(
        'velero-plugin-longshore: cannot open /plugins/longshore/ld.so: the folder longshore has to lie beside the plugin, as its image brings it\n',
      );
      expect(status).toBe(127);
      fs.mkdirSync(join(alone, 'plugins/longshore'));
      fs.writeFileSync(join(alone, 'plugins/longshore/ld.so'), 'not a program');
      expect(run(alone, PROGRAM).stderr).toContain('not a dynamic loader for this processor');
    });
  });

  it.skipIf(!canCross)(
    'is made for arm64 too: all of it of that kind, and it runs',
    () => {
      const out = join(work, 'arm64');
      expect(make(projectWithFetchedBinary('project-arm64'), out, 'arm64')).toMatch(/sha256:/);
      const AARCH64 = 183;
      const machines = machinesOf(out);
      // The ready-made parts need other libraries of C on each architecture.
      const programs = (found: ReadonlyMap<string, number>): number =>
        [...found.keys()].filter((path) => !/\.so(\.|$)/.test(path)).length;
      expect(programs(machines)).toBe(programs(machinesOf(rootfs)));
      expect([...new Set(machines.values())]).toEqual([AARCH64]);
      const parts = [...machines.keys()].filter((path) => path.endsWith('.node')).sort();
      expect(parts.map((path) => path.split('/').at(-1))).toEqual([
        'koffi.node',
        'blake.linux-arm64-gnu.node',
        'binding.node',
      ]);
      const told = JSON.parse(
        fs.readFileSync(join(out, 'opt/longshore/longshore.spdx.json'), 'utf8'),
      ) as Document;
      const names = told.packages.map(({ name }) => name);
      expect(names).toEqual(expect.arrayContaining(['libc6', 'dash', 'tini', 'node', 'koffi']));
      fs.copyFileSync(QEMU, join(out, 'qemu'));
      fs.chmodSync(join(out, 'qemu'), 0o755);
      fs.writeFileSync(join(out, 'dev/null'), '');
      const inside = (...parameters: string[]): string => {
        const env = { PATH: '/bin', HOME: '/scratch', LONGSHORE_PASSWORD: 'x' };
        const result = spawnSync('/usr/sbin/chroot', [out, '/qemu', ...parameters], {
          env,
          encoding: 'utf8',
        });
        expect(result.stderr).toBe('');
        expect(result.status).toBe(0);
        return result.stdout;
      };
      const program = ['/opt/longshore/node_modules/node/bin/node', '/opt/longshore/dist/cli.js'];
      inside(...program, 'repository', 'create', '--repo', '/scratch/repo');
      // A native part that cannot be loaded would be told on standard error.
      const backup = ['snapshot', 'create', '/opt/longshore/bin', '--repo', '/scratch/repo'];
      expect(inside(...program, ...backup)).toMatch(/ 1 file \(/);
      expect(inside('/bin/sh', '-c', 'echo ready')).toBe('ready\n');

      const plugin = join(out, 'plugin');
      execFileSync(join(ROOT, 'image/plugin.sh'), [plugin, out, 'arm64']);
      expect([...new Set(machinesOf(plugin).values())]).toEqual([AARCH64]);
      const inPlugin = JSON.parse(
        fs.readFileSync(join(plugin, PLUGIN_DOCUMENT), 'utf8'),
      ) as Document;
      expect(ownersTold(inPlugin, plugin).get('./plugins/longshore/ld.so')).toBe('libc6');
      const started = [out, '/qemu', '/plugin/plugins/velero-plugin-longshore'];
      const { status, stderr } = spawnSync('/usr/sbin/chroot', started, {
        env: {},
        encoding: 'utf8',
      });
      expect(stderr).toMatch(/: this program is a plugin of Velero/);
      expect(status).toBe(1);
    },
    1_200_000,
  );
});

describe('the Dockerfile', () => {
  const text = fs.readFileSync(join(ROOT, 'Dockerfile'), 'utf8');

  it('names what it begins with by digest', () => {
    const bases = [...text.matchAll(/^FROM (?:--platform=\S+ )?(\S+)/gm)].map(([, base]) => base);
    expect(bases.length).toBe(3);
    for (const base of bases) expect(base).toMatch(/^scratch$|^\S+@sha256:[0-9a-f]{64}$/);
  });

  it("takes Debian's packages from the snapshot that the base names", () => {
    const [, expressions = ''] = /sed -i (.*) \/etc\/apt\/sources/.exec(text) ?? [];
    const sources = [
      'Types: deb',
      '# http://snapshot.test/archive/debian/20260824T000000Z',
      'URIs: http://moving.test/debian',
      'Suites: bookworm bookworm-updates',
    ];
    const input = sources.join('\n');
    const output = execFileSync('sh', ['-c', `sed ${expressions}`], { input, encoding: 'utf8' });
    expect(output.trim().split('\n')).toEqual([
      'Types: deb',
      'URIs: http://snapshot.test/archive/debian/20260824T000000Z',
      'Suites: bookworm bookworm-updates',
    ]);
  });
});
