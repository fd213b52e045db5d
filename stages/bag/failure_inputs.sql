-- Which inputs fail: each simple feature of a cell as one split of a decision tree. `order by gain
-- desc` puts the most informative features first.
--
-- subject      VARCHAR  the model
-- operator     VARCHAR  add, subtract, multiply or divide
-- feature      VARCHAR  feature by which cells are grouped. Only for models trained here: split;
--                       split and mirror (the split of the cell, and of the cell with op1 and op2
--                       exchanged, for add and multiply). For all models: order of operands; units,
--                       digits (how many) and span ($span long) of op1, op2 and result; carries;
--                       borrows; carried (tens of the product of the units); slack (how far op1 is
--                       from giving another quotient)
-- value        VARCHAR  value of the feature
-- cells        BIGINT   number of cells with this value
-- failures     BIGINT   number of these cells that are answered wrongly
-- share        DOUBLE   failures / cells, 0 to 1
-- lift         DOUBLE   share / share of all the operator's cells; null if no cell fails
-- gain         DOUBLE   information gain of the feature about whether a cell fails, in bits, over
--                       all its values
-- gain_chance  DOUBLE   information gain expected by chance, in bits: (values - 1) / (2 ln 2
--                       cells); rough if few cells fail
with
    answered as (
        select
            operator, op1, op2, cells.result, not correct as failed,
            if(trained_here, cells.split, null) as split, mirror.split as mirror
        from predictions
        join origins using (subject)
        join cells using (operator, op1, op2)
        left join cells as mirror
            on (mirror.operator, mirror.op1, mirror.op2) = (operator, op2, op1)
            and operator in ('add', 'multiply')
    ),
    described as (
        select
            operator, failed, split, split || ', mirror ' || mirror as "split and mirror",
            case when op1 < op2 then 'op1 < op2' when op1 > op2 then 'op1 > op2'
                else 'op1 = op2' end as "order of operands",
            op1 % 10 as "units of op1", op2 % 10 as "units of op2",
            result % 10 as "units of result",
            len(op1::varchar) as "digits of op1", len(op2::varchar) as "digits of op2",
            len(result::varchar) as "digits of result",
            span(op1, $span) as "span of op1", span(op2, $span) as "span of op2",
            span(result, $span) as "span of result",
            if(operator = 'add', carries(op1, op2), null) as carries,
            if(operator = 'subtract', borrows(op1, op2), null) as borrows,
            if(operator = 'multiply', carried(op1, op2), null) as carried,
            if(operator = 'divide', slack(op1, op2, result), null) as steps,
            (2 ** floor(log2(steps)))::integer as doubling,
            if(doubling = 1, '1', doubling || '..' || 2 * doubling - 1) as slack
        from answered
    ),
    facts as (
        unpivot (select * exclude (steps, doubling) from described)
            on columns(* exclude (operator, failed))::varchar
        into name feature value value
    ),
    counted as (
        select operator, feature, value, grouping(value) = 1 as whole, count(*) as cells,
            count(*) filter (failed) as failures
        from facts group by grouping sets ((operator, feature, value), (operator, feature))
    ),
    unknown as (  -- bits needed to say which of the cells fail
        select *, cells - failures as rest,
            cells * log2(cells) - failures * log2(larger(failures, 1))
                - rest * log2(larger(rest, 1)) as bits
        from counted
    ),
    gains as (
        select operator, feature, larger(sum(if(whole, bits, -bits)) / max(cells), 0) as gain,
            (count(*) - 2) / (2 * ln(2) * max(cells)) as gain_chance,
            max(failures) / max(cells) as usual
        from unknown group by operator, feature
    )
select
    $subject as subject, operator, feature, value, cells, failures, failures / cells as share,
    share / nullif(usual, 0) as lift,
    gain, gain_chance
from counted join gains using (operator, feature)
where not whole
order by operator, gain desc, feature, share desc, value
