/**
 * `compiled-code.cjs CACHE MODULE...`: writes Node's compile cache of these modules and all their
 * imports. Run it inside the image's root file system, with the launcher's flags, because Node
 * keeps compiled code by path and flags.
 *
 * V8 numbers functions in the order of their first use, including Node's own, and writes these
 * numbers into compiled code. In a running program the order depends on reads, on timers, and on
 * the type of standard error. So this program compiles the modules without running them, one after
 * the other, in the order of their imports. All calls here are synchronous.
 */
/* eslint-disable @typescript-eslint/no-require-imports -- ES imports wait for each other */
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
