/**
 * `spdx.ts ROOTFS INPUTS [SYSROOT]`: prints an SPDX 2.3 document of a root file system.
 *
 * Every file has its hash and its package, for Debian's files by dpkg, and for npm's by the
 * lockfile. The bundle belongs to this package. The inputs of esbuild (INPUTS) and the code
 * compiled into Node and zstd-napi are packages without files. The plugin's file has relations to
 * its parts, which plugin-spdx.ts reads. A file without a package is an error.
 */
import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, globSync, lstatSync, readFileSync, realpathSync } from 'node:fs';
import { join } from 'node:path';

interface LockedPackage {
  readonly version?: string;
  readonly license?: string;
  readonly integrity?: string;
}
interface Package {
  readonly SPDXID: string;
  readonly name: string;
  readonly [field: string]: unknown;
}

const [rootfs = '', inputsFile = '', sysroot = ''] = process.argv.slice(2);
const root = new URL('../', import.meta.url);
const read = (path: string): unknown => JSON.parse(readFileSync(new URL(path, root), 'utf8'));
const { name, version, license } = read('package.json') as Record<
  'name' | 'version' | 'license',
  string
>;
const { packages: locked } = read('package-lock.json') as {
  packages: Record<string, LockedPackage>;
};
const APP = 'opt/longshore/';
const PLUGIN = `${APP}dist/velero-plugin-longshore`;

const idOf = (text: string): string => `SPDXRef-${text.replaceAll(/[^A-Za-z0-9.-]/g, '-')}`;
const licenseOf = (text: string | undefined): string =>
  text !== undefined && /^[A-Za-z0-9.+() -]+$/.test(text) ? text : 'NOASSERTION';

function packageOf(kind: string, its: string, itsVersion: string, more: object = {}): Package {
  const reference = { referenceCategory: 'PACKAGE-MANAGER', referenceType: 'purl' };
  const purl = `pkg:${kind}/${its.replace('@', '%40')}@${itsVersion}`;
  return {
    SPDXID: idOf(`${kind}-${its}-${itsVersion}`),
    name: its,
    versionInfo: itsVersion,
    downloadLocation: 'NOASSERTION',
    licenseConcluded: 'NOASSERTION',
    licenseDeclared: 'NOASSERTION',
    copyrightText: 'NOASSERTION',
    filesAnalyzed: false,
    externalRefs: [{ ...reference, referenceLocator: purl }],
    ...more,
  };
}

/** Uses the longest path of the lockfile that leads to the file. */
function npmPackageOf(path: string): Package | undefined {
  const place = path.slice(path.indexOf('node_modules/'));
  let best = '';
  for (const key of Object.keys(locked)) {
    if (place.startsWith(`${key}/`) && key.length > best.length) best = key;
  }
  const entry = locked[best];
  if (!entry || best === '') return undefined;
  const its = best.slice(best.lastIndexOf('node_modules/') + 'node_modules/'.length);
  const hex = Buffer.from((entry.integrity ?? '').replace('sha512-', ''), 'base64').toString('hex');
  return packageOf('npm', its, entry.version ?? '', {
    licenseDeclared: licenseOf(entry.license),
    ...(hex !== '' && { checksums: [{ algorithm: 'SHA512', checksumValue: hex }] }),
  });
}

const own = packageOf('npm', name, version, {
  licenseConcluded: license,
  licenseDeclared: license,
});
const say = (command: string, ...parameters: string[]): string =>
  execFileSync(command, parameters, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] });

/**
 * Debian's database knows files by the paths of before or after the merge of /usr. `base`: where
 * Debian's files of another architecture were unpacked, with a database of their own.
 */
function debianPackageOf(source: string, base = sysroot): Package | undefined {
  const database = base === '' ? [] : [`--admindir=${base}/var/lib/dpkg`];
  const real = realpathSync(base + source).slice(base === '' ? 0 : realpathSync(base).length);
  const paths = [
    source,
    real,
    source.replace(/^\/usr/, ''),
    real.replace(/^\/usr/, ''),
    `/usr${source}`,
  ];
  for (const path of paths) {
    let owner: string;
    try {
      [owner = ''] = say('dpkg', ...database, '-S', path).split(/[:,]/);
    } catch {
      continue;
    }
    const format = '${Version}|${source:Package}|${source:Version}\n';
    const [first = ''] = say('dpkg-query', ...database, '-W', '-f', format, owner).split('\n');
    const [itsVersion = '', from = '', fromVersion = ''] = first.split('|');
    return packageOf('deb/debian', owner, itsVersion, {
      sourceInfo: `built from ${from} ${fromVersion}`,
    });
  }
  return undefined;
}

/** Where a file of the image that Debian made was copied from. */
const SOURCES: Record<string, string> = {
  'bin/sh': 'dash',
  'sbin/tini': 'tini',
  'bin/readlink': 'readlink',
};
const WRITTEN_HERE = new Set(['etc/passwd', 'etc/group']);

function ownerOf(path: string): Package {
  if (WRITTEN_HERE.has(path)) return own;
  if (path.startsWith(`${APP}node_modules/`)) {
    const found = npmPackageOf(path);
    if (found) return found;
  } else if (path.startsWith(APP)) return own;
  else if (path === 'etc/ssl/certs/ca-certificates.crt') {
    const found = debianPackageOf('/usr/sbin/update-ca-certificates', '');
    if (found) return found;
  } else {
    const tool = SOURCES[path];
    const source =
      tool === undefined
        ? `/${path}`
        : ['/usr/bin', '/bin']
            .map((folder) => `${folder}/${tool}`)
            .find((each) => existsSync(sysroot + each));
    const found = source === undefined ? undefined : debianPackageOf(source);
    if (found) return found;
  }
  throw new Error(`${path} is in the image, and no package has it`);
}

const paths = globSync('**/*', {
  cwd: rootfs,
  exclude: (path) => path === 'proc' || path === 'dev',
})
  .filter((path) => lstatSync(join(rootfs, path)).isFile())
  .sort();
const packages = new Map([[own.SPDXID, own]]);
const relationships: object[] = [];
const relate = (from: string, relationshipType: string, to: string): void => {
  relationships.push({ spdxElementId: from, relationshipType, relatedSpdxElement: to });
};
const add = (each: Package, relation: string, from = own): void => {
  if (packages.has(each.SPDXID)) return;
  packages.set(each.SPDXID, each);
  relate(from.SPDXID, relation, each.SPDXID);
};
const fileIdOf = (path: string): string =>
  idOf(`file-${createHash('sha256').update(path).digest('hex').slice(0, 32)}`);
const files = paths.map((path) => {
  const owner = ownerOf(path);
  add(owner, 'DEPENDS_ON');
  const hash = createHash('sha256')
    .update(readFileSync(join(rootfs, path)))
    .digest('hex');
  const SPDXID = fileIdOf(path);
  relate(owner.SPDXID, 'CONTAINS', SPDXID);
  return {
    SPDXID,
    fileName: `./${path}`,
    checksums: [{ algorithm: 'SHA256', checksumValue: hash }],
    licenseConcluded: 'NOASSERTION',
    copyrightText: 'NOASSERTION',
  };
});
const { program, plugin } = JSON.parse(readFileSync(inputsFile, 'utf8')) as Record<
  'program' | 'plugin',
  string[]
>;
const bundled = (inputs: readonly string[]): Package[] => {
  const found = inputs
    .filter((input) => input.includes('node_modules/'))
    .flatMap((input) => npmPackageOf(input) ?? []);
  return [...new Map(found.map((each) => [each.SPDXID, each])).values()];
};
for (const found of bundled([...program, ...plugin])) add(found, 'STATIC_LINK');
for (const { SPDXID } of bundled(plugin)) relate(fileIdOf(PLUGIN), 'STATIC_LINK', SPDXID);
const named = (its: string): Package | undefined =>
  [...packages.values()].find((each) => each.name === its);
// What Node itself is made of, by its own word.
const NO_PARTS = new Set(['node', 'modules', 'napi', 'unicode', 'cldr', 'tz']);
for (const [part, its] of Object.entries(process.versions)) {
  if (!NO_PARTS.has(part) && its !== undefined)
    add(packageOf('generic', part, its), 'STATIC_LINK', named('node'));
}
const header = new URL('node_modules/zstd-napi/deps/zstd/lib/zstd.h', root);
const numbers = readFileSync(header, 'utf8').match(
  /(?<=#define ZSTD_VERSION_(MAJOR|MINOR|RELEASE) +)\d+/g,
);
add(packageOf('generic', 'zstd', (numbers ?? []).join('.')), 'STATIC_LINK', named('zstd-napi'));

const document = {
  spdxVersion: 'SPDX-2.3',
  dataLicense: 'CC0-1.0',
  SPDXID: 'SPDXRef-DOCUMENT',
  name: `${name}-${version}`,
  documentNamespace: `https://spdx.org/spdxdocs/${name}-${version}`,
  creationInfo: { created: '1970-01-01T00:00:00Z', creators: [`Tool: ${name}`] },
  packages: [...packages.values()],
  files,
  relationships: [
    {
      spdxElementId: 'SPDXRef-DOCUMENT',
      relationshipType: 'DESCRIBES',
      relatedSpdxElement: own.SPDXID,
    },
    ...relationships,
  ],
};
process.stdout.write(`${JSON.stringify(document, null, 1)}\n`);
