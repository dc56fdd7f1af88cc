#!/usr/bin/env node
// Perfetto's trace processor, built to WebAssembly, behind the HTTP routes of its native shell.
//
// The Python package `perfetto` starts it in the shell's place (TraceProcessorConfig.bin_path), as
// `trace_processor.cjs ... --http-port PORT ...`. The build lies in .trace-processor (`make trace-processor`); what it
// reads and answers are messages of Perfetto's protos/perfetto/trace_processor/trace_processor.proto.
"use strict";

const fs = require("node:fs");
const http = require("node:http");
const path = require("node:path");
const vm = require("node:vm");

const BUILD = path.join(__dirname, "../../.trace-processor");

// Fields and methods of TraceProcessorRpc.
const METHOD = 2, APPEND_DATA = 101, QUERY = 103;
const ROUTES = {
  "/status": { method: 10, result: 210 },
  "/parse": { method: 1, argument: APPEND_DATA, result: 201 },
  "/notify_eof": { method: 2, result: 212 },
  "/query": { method: 3, argument: QUERY, result: 203 },
};

// The build is a browser's worker: it fetches its module and talks over a port that it is sent.
function load() {
  const Module = WebAssembly.Module;
  WebAssembly.Module = function (bytes) {
    if (bytes.length < 100) throw new Error("asks for 64-bit memory, which this build is without");
    return new Module(bytes);
  };
  global.WorkerGlobalScope = class {};
  global.self = { location: { href: "file:///" } };
  global.XMLHttpRequest = class {
    open(method, name) { this.response = fs.readFileSync(path.join(BUILD, path.basename(name))); }
    send() {}
  };
  const bundle = path.join(BUILD, "engine_bundle.node.js");
  vm.runInThisContext(fs.readFileSync(bundle, "utf8"), { filename: bundle });
  WebAssembly.Module = Module;
  const port = {};
  self.onmessage({ data: port });
  return port;
}

function varint(value) {
  const bytes = [];
  for (; value > 127; value = Math.floor(value / 128)) bytes.push((value % 128) + 128);
  return Buffer.from([...bytes, value]);
}

function field(number, bytes) {
  return Buffer.concat([varint(number * 8 + 2), varint(bytes.length), bytes]);
}

// [number, value] of each field of a message: a number, or the bytes of a message.
function* fields(bytes) {
  let at = 0;
  const next = () => {
    let value = 0, scale = 1, byte;
    do {
      byte = bytes[at++];
      value += (byte % 128) * scale;
      scale *= 128;
    } while (byte > 127);
    return value;
  };
  while (at < bytes.length) {
    const key = next();
    const value = next();
    if (key % 8 === 0) yield [Math.floor(key / 8), value];
    else yield [Math.floor(key / 8), bytes.subarray(at, (at += value))];
  }
}

const processor = load();
let sent = 0;

// The answer's messages, joined: a table that comes in batches is the one message that its parts make.
function ask({ method, argument, result }, body) {
  const replies = [];
  processor.postMessage = (bytes) => replies.push(Buffer.from(bytes));
  const request = [varint(8), varint(++sent), varint(METHOD * 8), varint(method)];
  if (argument) request.push(field(argument, body));
  processor.onmessage({ data: new Uint8Array(field(1, Buffer.concat(request))) });
  const answer = [];
  for (const [, message] of fields(Buffer.concat(replies)))
    for (const [number, value] of fields(message)) if (number === result) answer.push(value);
  if (!answer.length) throw new Error(`no answer to method ${method}: ${Buffer.concat(replies)}`);
  return Buffer.concat(answer);
}

const server = http.createServer((request, response) => {
  const body = [];
  request.on("data", (part) => body.push(part));
  request.on("end", () => {
    const route = ROUTES[request.url];
    response.statusCode = route ? 200 : 404;
    response.end(route && ask(route, Buffer.concat(body)));
  });
});
const port = Number(process.argv[process.argv.indexOf("--http-port") + 1]);
setImmediate(() => server.listen(port, "127.0.0.1"));
