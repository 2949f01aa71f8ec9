/**
 * `npm run build [-- DIRECTORY [INPUTS]]`: writes bundles for the command line, for threads and
 * their shared code, and adds the kernels and Kubernetes' schemas.
 */
import { chmodSync, copyFileSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { brotliCompressSync } from 'node:zlib';
import { build, type BuildOptions, type Plugin } from 'esbuild';
import { GET_BUILTIN, lookUpBuiltins } from './build-builtins.ts';
import { buildTypes } from './build-types.ts';
import { assetsOf } from './cli/install/assets.ts';

const root = new URL('../', import.meta.url).pathname;
const out = process.argv[2] ?? `${root}dist`;
mkdirSync(out, { recursive: true });
/** Error texts of zod in 50 languages: a fifth of the bundle, and unused. */
const withoutLocales: Plugin = {
  name: 'without-locales',
  setup: (bundler) => {
    bundler.onLoad({ filter: /zod[/\\]v4[/\\]locales[/\\]index\.js$/ }, () => ({
      contents: '',
      loader: 'js',
    }));
  },
};

/** client-node's OIDC login loads an HTTP client and the generated models, and never calls them. */
const withoutGeneratedClients: Plugin = {
  name: 'without-generated-clients',
  setup: (bundler) => {
    const isClientNode = (importer: string): boolean =>
      /@kubernetes[/\\]client-node[/\\]dist[/\\][^/\\]+\.js$/.test(importer);
    bundler.onResolve({ filter: /^(undici|\.\/gen\/index\.js)$/ }, ({ path, importer }) =>
      isClientNode(importer) ? { path, namespace: 'unused' } : undefined,
    );
    bundler.onLoad({ filter: /.*/, namespace: 'unused' }, () => ({
      contents:
        'export class Agent {} export { Agent as ProxyAgent, Agent as createConfiguration, Agent as ServerConfiguration };',
      loader: 'js',
    }));
  },
};

/** commander loads this module for verbs that are separate programs. There are none here. */
const withoutPrograms: Plugin = {
  name: 'without-programs',
  setup: (bundler) => {
    bundler.onResolve({ filter: /^node:child_process$/ }, ({ path, importer }) =>
      /commander[/\\]lib[/\\]command\.js$/.test(importer)
        ? { path, namespace: 'no-programs' }
        : undefined,
    );
    bundler.onLoad({ filter: /.*/, namespace: 'no-programs' }, () => ({
      contents: 'export default {};',
      loader: 'js',
    }));
  },
};

/** Bundles the entry points and returns the paths of all inputs. */
async function bundle(
  options: Pick<BuildOptions, 'entryPoints' | 'splitting' | 'minifyIdentifiers' | 'minifySyntax'>,
): Promise<string[]> {
  const { metafile, outputFiles } = await build({
    ...options,
    outdir: out,
    bundle: true,
    plugins: [withoutLocales, withoutGeneratedClients, withoutPrograms],
    platform: 'node',
    target: 'node24',
    format: 'esm',
    // An image has no source maps: they contain the paths of the sources, and file names depend on
    // their content.
    sourcemap: process.argv[3] === undefined,
    metafile: true,
    write: false,
    // Native, or with data files: resolved where the package is installed.
    external: ['koffi', 'zstd-napi', 'fastcdc-wasm'],
    banner: {
      js: `const require = ${GET_BUILTIN}("node:module").createRequire(import.meta.url);`,
    },
  });
  for (const { path, text, contents } of outputFiles) {
    writeFileSync(path, path.endsWith('.js') ? lookUpBuiltins(text) : contents);
  }
  return Object.keys(metafile.inputs);
}

/**
 * The single file for Velero's plugin folder. A shell starts it with the Node in the path. Node
 * reads it as a module, in any place and without a suffix. The heap is small, because a plugin
 * holds single objects of the API.
 */
const PLUGIN_HEAD = `#!/bin/sh
':' //; exec node --max-semi-space-size=1 --disable-warning=ExperimentalWarning "$0" "$@"
export {};
`;

async function buildPlugin(): Promise<string[]> {
  const small = { minifyIdentifiers: true, minifySyntax: true };
  const name = (part: string): string => `${out}/plugin-${part}.js`;
  const used: string[] = [];
  for (const part of ['main', 'actions']) {
    const entryPoints = { [`plugin-${part}`]: `${root}src/cli/plugin/plugin-${part}.ts` };
    // Keeps statements on their own lines, because the search for imports works by line.
    used.push(...(await bundle({ entryPoints, ...small })));
  }
  const codeOf = (part: string): string =>
    readFileSync(name(part), 'utf8').replace(/\n\/\/# sourceMappingURL=.*\n?$/, '\n');
  // Read from a data: URL, which cannot resolve packages.
  const actions = codeOf('actions').replaceAll('import.meta.url', '"file:///"');
  // Otherwise stacks would repeat the whole URL.
  const packed = brotliCompressSync(`${actions}//# sourceURL=velero-plugin-longshore\n`).toString(
    'base64',
  );
  const file = `${out}/velero-plugin-longshore`;
  writeFileSync(file, `${PLUGIN_HEAD}${codeOf('main')}/*${packed}*/\n`);
  chmodSync(file, 0o755);
  for (const part of ['main', 'actions']) {
    rmSync(name(part));
    rmSync(`${name(part)}.map`, { force: true });
  }
  return used;
}

const inputs = [
  // Libraries of cloud storages are separate files, loaded if a location needs them.
  ...(await bundle({ entryPoints: { cli: `${root}src/cli/main.ts` }, splitting: true })),
  // For third-party plugins: `longshore/volume-helper`.
  ...(await bundle({ entryPoints: { 'volume-helper': `${root}src/plugin/volume-helper.ts` } })),
  // A thread loads only its own code.
  ...(await bundle({
    entryPoints: {
      thread: `${root}src/workers/thread.ts`,
      'estimate-thread': `${root}src/uploader/estimate/estimate-thread.ts`,
    },
  })),
];
// An image does not need them.
if (process.argv[3] === undefined) {
  buildTypes(root, `${root}src/plugin/volume-helper.ts`, `${out}/types`);
}
const plugin = await buildPlugin();
copyFileSync(`${root}src/codec/wasm/kernels.wasm`, `${out}/kernels.wasm`);
copyFileSync(`${root}src/dev/api-server/schemas.json.br`, `${out}/schemas.json.br`);
// The manifests for `longshore install`, so that it needs no kustomize.
writeFileSync(`${out}/install.json`, JSON.stringify(assetsOf(root)));
// The inputs of program and plugin. image/spdx.ts derives the packages from them.
if (process.argv[3]) {
  const used = { program: [...new Set(inputs)], plugin: [...new Set(plugin)] };
  writeFileSync(process.argv[3], JSON.stringify(used));
}
