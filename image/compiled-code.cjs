/**
 * `compiled-code.cjs CACHE MODULE...`: Node's compile cache of these modules and of all that they
 * import. It is made inside the image's root file system, with the launcher's flags: Node keeps
 * compiled code by path and flags.
 *
 * V8 numbers functions in the order in which it first meets them, Node's own among them, and writes
 * these numbers into compiled code. In a program that runs they follow from which read ends first,
 * from timers, and from whether standard error is a file. So the modules are compiled and none of
 * them runs: each when the one before it is compiled, in the order of their imports. Nothing here
 * waits.
 */
/* eslint-disable @typescript-eslint/no-require-imports -- imports of a module wait for each other */
'use strict';
const { readdirSync, writeFileSync } = require('node:fs');
const nodeModule = require('node:module');
const { join } = require('node:path');
const { GCProfiler } = require('node:v8');

const [cache, ...modules] = process.argv.slice(2);
const { ENABLED } = nodeModule.constants.compileCacheStatus;
const collector = new GCProfiler();
collector.start();
// A module that waits, asked for by code that does not, is refused when all that it imports is
// compiled and nothing has run.
const importer = join(__dirname, 'importer.mjs');
const imports = modules.toSorted().map((path) => `import '${path}';\n`);
writeFileSync(importer, `${imports.join('')}await 0;\n`);

const wanted = new Set();
nodeModule.registerHooks({
  resolve(specifier, context, next) {
    const found = next(specifier, context);
    if (specifier === importer) return found;
    // What imports all others is compiled by now: it is not of the image.
    if (wanted.size === 0) {
      const { status, message } = nodeModule.enableCompileCache(cache);
      if (status !== ENABLED) throw new Error(`Node keeps no compiled code: ${message}`);
    }
    if (found.url.startsWith('file:')) wanted.add(found.url);
    return found;
  },
});
try {
  require(importer);
  throw new Error('the modules have run, so that their compiled code is not the same each time');
} catch (error) {
  if (error.code !== 'ERR_REQUIRE_ASYNC_MODULE') throw error;
}
// A function that the collector has taken away gets another number when it is met again.
if (collector.stop().statistics.some(({ gcType }) => gcType !== 'Scavenge')) {
  throw new Error('garbage was collected, so that compiled code is not the same each time');
}
nodeModule.flushCompileCache();
const { length } = readdirSync(nodeModule.getCompileCacheDir());
if (length !== wanted.size) {
  throw new Error(`Node has kept compiled code of ${length} files, not of ${wanted.size}`);
}
